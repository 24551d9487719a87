"""From the wire to a call and back: listeners, HTTP and gRPC, the Open Inference Protocol, errors, and who may ask."""
