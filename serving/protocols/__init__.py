"""From the wire to a call and back: listeners, HTTP and gRPC, the Open Inference Protocol, errors, and who may ask.

front.py                 what both ports share: access.py (who may ask), intake.py (how much at once), inference_statistics.py
http_api.py              the HTTP routes: http_body.py and json_body.py read a body, answer_body.py and http_reply.py write the answer,
                         http_errors.py an error; client_watch.py: a client that has gone
grpc_api.py              the gRPC methods; grpc_errors.py
open_inference.py        the Open Inference Protocol without a transport; open_inference_http.py over HTTP
listener.py              Granian in our event loop; grpc_listener.py: grpc.aio beside it; ports.py: their ports
openapi.py               the document of the HTTP routes
"""
