"""From the wire to a call and back: listeners, HTTP and gRPC, the Open Inference Protocol, errors, and who may ask.

- front.py: what both ports share: who may ask, how much at once, metrics, the access log
- http_api.py: the HTTP routes; http_body.py reads a body, http_reply.py writes an answer or an error
- grpc_api.py: the gRPC methods and their errors; inference_messages.py: their protobuf messages
- open_inference.py: the Open Inference Protocol without a transport; open_inference_http.py over HTTP
- listener.py: Granian in our event loop; grpc_listener.py: grpc.aio next to it; ports.py: their ports
- openapi.py: the document of the HTTP routes
"""
