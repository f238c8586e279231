"""What the server and its one model say of themselves, and which names and versions they answer to.

The model's versions are the index's: the one that the next batch is answered from can be asked for
by name, an older or newer one cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version as installed_version

from grace.catalog.values import describe
from grace.serve.engine import Engine
from grace.serve.faults import Fault

PLATFORM = "grace_generative_retrieval"
EXTENSIONS = ["binary_tensor_data", "model_configuration"]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the model: n requests of a call, N ads of all of them, L tokens of a SID.

    Attributes:
        name: of the tensor.
        datatypes: accepted or given; the first is the one in the metadata.
        dims: -1 where a dimension varies with the call, `L` where with the index.
    """

    name: str
    datatypes: tuple[str, ...]
    dims: tuple[int | str, ...] = (-1,)

    def shape(self, num_levels: int) -> list[int]:
        """Return the dimensions for SIDs of `num_levels` tokens."""
        return [num_levels if size == "L" else size for size in self.dims]


REQUEST = TensorInfo("request", ("BYTES",))
# The same by key of a request, for clients that have columns; each `[n]`.
COLUMNS = (
    TensorInfo("id", ("BYTES", "INT64")),
    TensorInfo("attributes", ("BYTES",)),
    TensorInfo("features", ("BYTES",)),
    TensorInfo("at", ("BYTES",)),
    TensorInfo("top_k", ("INT64", "INT32")),
)
OUTPUTS = (
    TensorInfo("ad_ids", ("BYTES",)),
    TensorInfo("scores", ("FP32",)),
    TensorInfo("sids", ("INT64",), (-1, "L")),
    TensorInfo("counts", ("INT64",)),
    TensorInfo("version", ("BYTES",)),
    TensorInfo("funnel", ("BYTES",)),
    TensorInfo("error", ("BYTES",)),
)
_CONFIG_TYPES = {"BYTES": "TYPE_STRING", "INT64": "TYPE_INT64", "FP32": "TYPE_FP32"}


def check_model(engine: Engine, served: str, name: str, version: str) -> None:
    """Refuse another model's name, or a version that is not the one served now.

    Args:
        engine: which answers.
        served: the name it is served under.
        name: as the client gives it.
        version: as the client gives it; empty for whichever is served.

    Raises:
        Fault: 404, naming what is served.
    """
    if name != served:
        message = f"expected {served!r}, the model of this server, got {describe(name)}"
        raise Fault(404, "model", message, "not_found")
    if version:
        check_version(version, served_version(engine))


def check_version(asked: str, current: str) -> None:
    """Refuse a version that is not the current one.

    Raises:
        Fault: 404, naming the current one.
    """
    if asked != current:
        message = f"expected {current!r}, the version served now, got {describe(asked)}"
        raise Fault(404, "version", message, "not_found")


def served_version(engine: Engine) -> str:
    """Return the index version that the next batch is answered from, as answers name it."""
    return str(engine.index.version)


def server_metadata() -> dict:
    """Return `{"name", "version", "extensions"}`."""
    return {"name": "grace", "version": installed_version("grace"), "extensions": EXTENSIONS}


def model_metadata(engine: Engine, served: str) -> dict:
    """Return `{"name", "versions", "platform", "inputs", "outputs"}`."""
    index = engine.index

    def describe_tensor(info: TensorInfo) -> dict:
        shape = info.shape(index.num_levels)
        return {"name": info.name, "datatype": info.datatypes[0], "shape": shape}

    return {
        "name": served,
        "versions": [str(index.version)],
        "platform": PLATFORM,
        "inputs": [describe_tensor(REQUEST)],
        "outputs": [describe_tensor(info) for info in OUTPUTS],
    }


def model_config(engine: Engine, served: str) -> dict:
    """Return the model's configuration as Triton's extension spells it.

    `max_batch_size` is 0, which says that no dimension is added in front: requests of all calls
    form batches whatever each call's n is.
    """
    num_levels = engine.index.num_levels

    def describe_tensor(info: TensorInfo) -> dict:
        data_type = _CONFIG_TYPES[info.datatypes[0]]
        return {"name": info.name, "data_type": data_type, "dims": info.shape(num_levels)}

    inputs = [describe_tensor(info) | {"optional": True} for info in (REQUEST, *COLUMNS)]
    return {
        "name": served,
        "platform": PLATFORM,
        "max_batch_size": 0,
        "input": inputs,
        "output": [describe_tensor(info) for info in OUTPUTS],
    }
