"""The protocol's gRPC interface and its generated stubs (`python scripts/protos.py`)."""
