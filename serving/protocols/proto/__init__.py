"""The gRPC form of the Open Inference Protocol: its messages, and how they are generated."""
