"""The interface is the protocol's, field by field, and the stubs are generated from it."""

import subprocess
import sys
from pathlib import Path

import tritonclient.grpc.model_config_pb2 as triton_config
import tritonclient.grpc.service_pb2 as triton

from grace.serve.kserve.metadata import COLUMNS, OUTPUTS, REQUEST
from grace.serve.kserve.protos import grpc_predict_v2_pb2 as pb

ROOT = Path(__file__).parents[2]


def test_the_stubs_are_what_the_generator_makes_of_the_interface():
    script = [sys.executable, str(ROOT / "scripts" / "protos.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def describe(field):
    kind = field.message_type or field.enum_type
    return (
        field.number, field.type, field.is_repeated, kind and kind.full_name,
        field.containing_oneof and field.containing_oneof.name,
    )  # fmt: skip


def assert_part(ours, theirs):
    """Every field of ours is theirs; so are the messages declared inside."""
    for field in ours.fields:
        assert describe(field) == describe(theirs.fields_by_name[field.name]), field.full_name
    for inner in ours.nested_types:
        assert_part(inner, theirs.nested_types_by_name[inner.name])


def test_every_message_and_method_is_the_one_that_clients_know():
    files = (triton.DESCRIPTOR, triton_config.DESCRIPTOR)
    theirs = {name: m for file in files for name, m in file.message_types_by_name.items()}
    for name, message in pb.DESCRIPTOR.message_types_by_name.items():
        assert_part(message, theirs[name])
        whole = {field.name for field in theirs[name].fields}
        partial = name in ("ModelConfig", "ModelInput", "ModelOutput")
        assert partial or {field.name for field in message.fields} == whole
    for value in pb.DESCRIPTOR.enum_types_by_name["DataType"].values:
        assert triton_config.DataType.Value(value.name) == value.number
    known = triton.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        other = known.methods_by_name[method.name]
        assert method.full_name == other.full_name
        assert method.input_type.full_name == other.input_type.full_name
        assert method.output_type.full_name == other.output_type.full_name


def test_the_interface_shares_a_process_with_other_clients_of_the_protocol():
    """Both are imported above; with one pool the second import would have failed."""
    message = pb.ModelInferRequest(model_name="grace", raw_input_contents=[b"x"])
    again = triton.ModelInferRequest.FromString(message.SerializeToString())
    assert again.model_name == "grace"


def test_the_page_names_every_tensor():
    page = (ROOT / "docs" / "kserve.md").read_text(encoding="utf-8")
    for info in (REQUEST, *COLUMNS, *OUTPUTS):
        assert f"| `{info.name}` | {' or '.join(info.datatypes)} |" in page
