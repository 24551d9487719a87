"""The committed messages are what the .proto says, and what a stock client's messages say field by field."""

import pytest
from google.protobuf import descriptor_pb2
from tritonclient.grpc import service_pb2 as stock

from serving.protocols.inference_messages import COMPILED, DESCRIPTOR, compile_proto

MESSAGES = sorted(DESCRIPTOR.message_types_by_name)


def test_the_compiled_file_is_that_of_the_proto() -> None:
    assert COMPILED.read_bytes() == compile_proto(), "run python -m serving.protocols.inference_messages"


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_has_the_number_and_type_that_a_stock_client_gives_it(name: str) -> None:
    pairs = [(DESCRIPTOR.message_types_by_name[name], stock.DESCRIPTOR.message_types_by_name[name])]
    while pairs:
        mine, theirs = pairs.pop()
        for field in mine.fields:
            other = theirs.fields_by_name[field.name]
            assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated), field.full_name
        pairs += [(nested, theirs.nested_types_by_name[nested.name]) for nested in mine.nested_types]


def test_the_service_has_the_names_that_a_stock_client_calls() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    DESCRIPTOR.CopyToProto(file)
    assert (file.package, [service.name for service in file.service]) == ("inference", ["GRPCInferenceService"])
    [theirs] = stock.DESCRIPTOR.services_by_name.values()
    for method in file.service[0].method:
        same = theirs.methods_by_name[method.name]
        assert (method.input_type, method.output_type) == (f".{same.input_type.full_name}", f".{same.output_type.full_name}")
