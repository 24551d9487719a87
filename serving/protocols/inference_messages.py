"""The messages of open_inference.proto as protobuf classes: `pb.ModelInferRequest` and so on.

open_inference.binpb is the .proto as protoc compiles it: `python -m serving.protocols.inference_messages` writes it (needs grpcio-tools, which is a tool of
development), and a test holds the two together.
The messages are registered in a descriptor pool of our own. A stock `tritonclient` registers the same names, the protocol's, in protobuf's default pool, and
that refuses a name twice. So one process may hold both: a notebook with two clients, a test. Reflection answers from this pool, so the pool also has the
health service and reflection itself.
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

COMPILED = Path(__file__).with_name("open_inference.binpb")


def compile_proto() -> bytes:
    """What belongs into open_inference.binpb: a FileDescriptorProto."""
    from grpc_tools import protoc

    source = COMPILED.with_suffix(".proto")
    with tempfile.NamedTemporaryFile() as written:
        code = protoc.main(["protoc", f"-I{source.parent}", f"--descriptor_set_out={written.name}", source.name])
        assert code == 0, f"protoc refused {source.name} with exit code {code}"
        return FileDescriptorSet.FromString(Path(written.name).read_bytes()).file[0].SerializeToString(deterministic=True)


if __name__ == "__main__":
    COMPILED.write_bytes(compile_proto())

POOL = DescriptorPool()
for _file in (health_pb2.DESCRIPTOR.serialized_pb, reflection_pb2.DESCRIPTOR.serialized_pb, COMPILED.read_bytes()):
    POOL.AddSerializedFile(_file)
DESCRIPTOR = POOL.FindFileByName("open_inference.proto")
pb: Any = SimpleNamespace(**{name: GetMessageClass(message) for name, message in DESCRIPTOR.message_types_by_name.items()})
