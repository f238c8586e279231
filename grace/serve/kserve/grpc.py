"""The protocol over gRPC, and grpc.health.v1 beside it (docs/kserve.md)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grace.errors import ConfigError
from grace.serve import Engine
from grace.serve.kserve import infer, metadata
from grace.serve.kserve.codec import InvalidInput, Tensor, decode_binary, decode_values
from grace.serve.kserve.codec import encode_binary as encode
from grace.serve.kserve.protos import grpc_predict_v2_pb2 as pb
from grace.serve.kserve.protos import grpc_predict_v2_pb2_grpc as pb_grpc
from grace.serve.kserve.status import NotFound, Unauthenticated, describe_failure

SERVICE = "inference.GRPCInferenceService"
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip

Authorize = Callable[[str | None], str | None]


async def start_server(
    engine: Engine, config: Any, authorize: Authorize | None = None
) -> grpc.aio.Server:
    """Start serving; the caller stops it with `await server.stop(grace_s)`.

    Args:
        engine: which answers.
        config: a `ServeConfig`: `model.name`, `grpc.port`, `http.host`, `http.max_body_bytes`,
            `http.max_depth`, `http.tls_cert` and `http.tls_key` are read: both transports have one
            address, one limit and one certificate.
        authorize: metadata `authorization` → the client's name, or None to refuse; without it
            everyone may ask. Health is open to all.

    Raises:
        ConfigError: if the port is taken or a TLS file cannot be read.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", config.http.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # or a second server would share the port in silence
        ]
    )
    pb_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(engine, config, authorize), server)
    health_pb2_grpc.add_HealthServicer_to_server(_Health(engine), server)
    address = f"{config.http.host}:{config.grpc.port}"
    try:
        if config.http.tls_cert:
            server.add_secure_port(address, _credentials(config.http))
        else:
            server.add_insecure_port(address)
    except RuntimeError:
        raise ConfigError(f"grpc.port: {address} cannot be bound; is it taken?") from None
    await server.start()
    return server


def _credentials(http: Any) -> grpc.ServerCredentials:
    files = []
    for key in ("tls_key", "tls_cert"):
        try:
            files.append(Path(getattr(http, key)).read_bytes())
        except OSError as error:
            raise ConfigError(f"http.{key}: cannot be read: {error.strerror}") from None
    return grpc.ssl_server_credentials([tuple(files)])


def _telling(method: Callable) -> Callable:
    """Wrap a method so that what it raises becomes a status."""

    @functools.wraps(method)
    async def tell(self: _Service, request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await method(self, request, context)
        except asyncio.CancelledError:
            raise  # the client is gone
        except Exception as error:
            failure = describe_failure(error)
        code = grpc.StatusCode[failure.grpc]
        trailer: list[tuple[str, str | bytes]] = []
        if failure.retry_after_s is not None:
            trailer = _retry_trailer(code, failure.message, failure.retry_after_s)
        await context.abort(code, failure.message, tuple(trailer))

    return tell


class _Service(pb_grpc.GRPCInferenceServiceServicer):
    def __init__(self, engine: Engine, config: Any, authorize: Authorize | None):
        self._engine = engine
        self._name = config.model.name
        self._max_depth = config.http.max_depth
        self._authorize = authorize

    @_telling
    async def ServerLive(self, request: Any, context: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    @_telling
    async def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=metadata.is_ready(self._engine))

    @_telling
    async def ModelReady(self, request: Any, context: Any) -> Any:
        try:
            metadata.check_model(self._engine, self._name, request.name, request.version)
        except NotFound:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=metadata.is_ready(self._engine))

    @_telling
    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return pb.ServerMetadataResponse(**metadata.server_metadata())

    @_telling
    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        _client(context, self._authorize)
        metadata.check_model(self._engine, self._name, request.name, request.version)
        return pb.ModelMetadataResponse(**metadata.model_metadata(self._engine, self._name))

    @_telling
    async def ModelConfig(self, request: Any, context: Any) -> Any:
        _client(context, self._authorize)
        metadata.check_model(self._engine, self._name, request.name, request.version)
        return pb.ModelConfigResponse(config=metadata.model_config(self._engine, self._name))

    @_telling
    async def ModelInfer(self, request: Any, context: Any) -> Any:
        engine = self._engine
        client = _client(context, self._authorize)
        version = request.model_version
        metadata.check_model(engine, self._name, request.model_name, version)
        parameters = _read_parameters(request.parameters)
        infer.check_parameters(parameters)
        for output in request.outputs:
            _refuse_shared_memory(output)
        names = infer.check_outputs([output.name for output in request.outputs])
        requests = infer.read_requests(
            read_inputs(request), parameters, engine.options.max_admitted, self._max_depth
        )
        timeout_ms = _timeout_ms(context, infer.read_timeout(parameters))
        answers = await infer.answer(engine, requests, client, timeout_ms, version)
        response = pb.ModelInferResponse(
            model_name=self._name, model_version=infer.common_version(answers), id=request.id
        )
        for tensor in infer.make_outputs(answers, names, engine.index.num_levels):
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            response.raw_output_contents.append(encode(tensor))
        return response


class _Health(health_pb2_grpc.HealthServicer):
    """`Check` only: `Watch` stays unimplemented, which clients take as a cue not to watch."""

    def __init__(self, engine: Engine):
        self._engine = engine

    async def Check(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        if request.service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        ready = metadata.is_ready(self._engine)
        serving = health_pb2.HealthCheckResponse
        return serving(status=serving.SERVING if ready else serving.NOT_SERVING)


def _client(context: grpc.aio.ServicerContext, authorize: Authorize | None) -> str:
    sent = dict(context.invocation_metadata() or ())
    if authorize is not None:
        client = authorize(sent.get("authorization"))
        if client is None:
            raise Unauthenticated("a known bearer token is needed")
        return client
    # "ipv4:127.0.0.1:54321": all connections of one address are one client.
    return sent.get("x-client-id") or context.peer().rpartition(":")[0]


def _timeout_ms(context: grpc.aio.ServicerContext, asked_ms: float | None) -> float | None:
    left_s = context.time_remaining()
    given = [asked_ms] if asked_ms is not None else []
    given += [max(left_s, 0.0) * 1e3] if left_s is not None else []
    return min(given, default=None)


def _read_parameters(parameters: Any) -> dict[str, Any]:
    read = {}
    for key, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidInput(f"parameter {key!r} has no value")
        read[key] = getattr(value, choice)
    return read


def read_inputs(request: Any) -> list[Tensor]:
    """Return the input tensors of a `ModelInferRequest`, from either form of contents.

    Raises:
        InvalidInput: if a tensor is not what its shape and datatype say.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidInput(
            f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs"
        )
    tensors = []
    for position, entry in enumerate(request.inputs):
        _refuse_shared_memory(entry)
        if not raw:
            tensors.append(_read_contents(entry))
        elif entry.HasField("contents"):
            raise InvalidInput(f"input {entry.name!r} has contents beside raw_input_contents")
        else:
            shape = tuple(entry.shape)
            tensors.append(decode_binary(entry.name, entry.datatype, shape, raw[position]))
    return tensors


def _read_contents(entry: Any) -> Tensor:
    field = _CONTENTS.get(entry.datatype)
    for other, values in entry.contents.ListFields():
        if other.name != field and len(values):
            raise InvalidInput(f"input {entry.name!r}: {other.name} does not hold {entry.datatype}")
    values = getattr(entry.contents, field) if field else ()
    return decode_values(entry.name, entry.datatype, tuple(entry.shape), values)


def _refuse_shared_memory(tensor: Any) -> None:
    for key in tensor.parameters:
        if key.startswith("shared_memory"):
            raise InvalidInput(f"tensor {tensor.name!r}: shared memory is not supported")


def _retry_trailer(code: grpc.StatusCode, message: str, retry_after_s: float) -> list:
    """Return when to retry, as google.rpc.RetryInfo and as gRPC's own push-back."""
    delay = Duration()
    delay.FromMicroseconds(round(retry_after_s * 1e6))
    status = Status(code=code.value[0], message=message)
    status.details.add().Pack(RetryInfo(retry_delay=delay))
    return [
        ("grpc-status-details-bin", status.SerializeToString()),
        ("grpc-retry-pushback-ms", str(round(retry_after_s * 1e3))),
    ]
