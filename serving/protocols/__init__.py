"""From the wire to a call and back: listeners, HTTP and gRPC, the Open Inference Protocol, errors, and who may ask.

front.py                 what both ports share: access.py (who may ask), intake.py (how much at once), inference_statistics.py
http_api.py              the HTTP routes: http_body.py reads a body, answer_body.py writes a ranking, http_reply.py an answer or an error;
                         client_watch.py: a client that has gone
grpc_api.py              the gRPC methods and their errors; messages.py: their protobuf messages
open_inference.py        the Open Inference Protocol without a transport; open_inference_http.py over HTTP
listener.py              Granian in our event loop; grpc_listener.py: grpc.aio next to it, grpc_server.py: its server;
                         ports.py: their ports; idle_connections.py: room for new clients
openapi.py               the document of the HTTP routes
"""
