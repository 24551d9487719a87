"""Where our messages are registered: a descriptor pool of our own, not protobuf's default one.

A stock `tritonclient` registers the same names (they are the protocol) in the default pool, which refuses a name twice. With a pool of our own one
process may hold both: a notebook with two clients, a test. Reflection answers from this pool, so it also knows the services beside ours.
"""

from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

POOL = DescriptorPool()
for _known in (health_pb2, reflection_pb2):
    POOL.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
