"""The protocol over gRPC, and grpc.health.v1 beside it (docs/kserve.md)."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grace.errors import ConfigError, RequestError
from grace.serve.answer import Answer
from grace.serve.calls import Call, Observer
from grace.serve.config import HttpConfig, ServeConfig
from grace.serve.engine import Engine, Overloaded
from grace.serve.faults import Fault, fault_of
from grace.serve.health import why_not_ready
from grace.serve.kserve import infer, metadata
from grace.serve.kserve.codec import (
    Tensor,
    decode_binary,
    decode_values,
    encode_binary,
    refuse_shared_memory,
    wrong_input,
)
from grace.serve.kserve.protos import grpc_predict_v2_pb2 as pb
from grace.serve.kserve.protos import grpc_predict_v2_pb2_grpc as pb_grpc
from grace.serve.security import Tokens, client_identity, take_request_id

SERVICE = "inference.GRPCInferenceService"
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip

_log = logging.getLogger(__name__)


async def start_server(
    engine: Engine, config: ServeConfig, observer: Observer, tokens: Tokens | None = None
) -> grpc.aio.Server:
    """Start serving; the caller stops it with `await server.stop(grace_s)`.

    Args:
        engine: which answers.
        config: address, limits and certificate are those of `http`, the port is `grpc`'s.
        observer: told of each call that is over.
        tokens: where they are required; health is open to all.

    Raises:
        ConfigError: if the port is taken or a TLS file cannot be read.
    """
    server = grpc.aio.server(
        interceptors=[_Undecodable()],
        options=[
            ("grpc.max_receive_message_length", config.http.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # or a second server would share the port in silence
        ],
    )
    service = _Service(engine, config, observer, tokens)
    pb_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(_Health(engine), server)
    host = config.http.host
    address = f"[{host}]:{config.grpc.port}" if ":" in host else f"{host}:{config.grpc.port}"
    try:
        if config.http.tls_cert:
            server.add_secure_port(address, _credentials(config.http))
        else:
            server.add_insecure_port(address)
    except RuntimeError:
        raise ConfigError(f"grpc.port: cannot listen on {address}; is it taken?") from None
    await server.start()
    return server


def _credentials(http: HttpConfig) -> grpc.ServerCredentials:
    files = []
    for key in ("tls_key", "tls_cert"):
        try:
            files.append(Path(getattr(http, key)).read_bytes())
        except OSError as error:
            raise ConfigError(f"http.{key}: cannot be read: {error.strerror}") from None
    return grpc.ssl_server_credentials([tuple(files)])


def _observed(is_open: bool = False) -> Callable[[Callable], Callable]:
    """Wrap a method: who calls, what it raises as a status, one end that is told.

    Args:
        is_open: whether it needs no token.
    """

    def wrap(method: Callable) -> Callable:
        @functools.wraps(method)
        async def run(self: _Service, request: Any, context: grpc.aio.ServicerContext) -> Any:
            call = self.begin(method.__name__, context)
            code = grpc.StatusCode.CANCELLED
            try:
                if not call.client and not is_open:
                    message = "expected a bearer token that this server knows"
                    raise Fault(401, "authorization", message, "unauthorized")
                response = await method(self, request, context, call)
                code = grpc.StatusCode.OK
                return response
            except asyncio.CancelledError:
                call.reason = "client_gone"
                raise
            except Exception as error:
                fault = fault_of(error)
                call.reason, code = fault.reason, CODES[fault.status]
                trailer = _trailer(error, code, fault, call.request_id)
            finally:
                self.observer.finish(call, code.name, code is grpc.StatusCode.INTERNAL)
            await context.abort(code, f"{fault.field}: {fault.message}", trailer)

        return run

    return wrap


class _Service(pb_grpc.GRPCInferenceServiceServicer):
    def __init__(
        self, engine: Engine, config: ServeConfig, observer: Observer, tokens: Tokens | None
    ):
        self._engine, self._name, self._http = engine, config.model.name, config.http
        self._tokens = tokens
        self.observer = observer

    def begin(self, method: str, context: grpc.aio.ServicerContext) -> Call:
        """Return the call that begins; without a token that is due it has no client."""
        get_header = dict(context.invocation_metadata() or ()).get
        # "ipv4:127.0.0.1:54321": all connections of one address are one client.
        peer = context.peer().partition(":")[2].rpartition(":")[0]
        client = client_identity(get_header, peer, self._tokens)
        request_id = take_request_id(get_header("x-request-id"))
        return Call("grpc", request_id, client or "", get_header, f"{SERVICE}/{method}")

    @_observed(is_open=True)
    async def ServerLive(self, request: Any, context: Any, call: Call) -> Any:
        return pb.ServerLiveResponse(live=True)

    @_observed(is_open=True)
    async def ServerReady(self, request: Any, context: Any, call: Call) -> Any:
        return pb.ServerReadyResponse(ready=why_not_ready(self._engine) is None)

    @_observed()
    async def ModelReady(self, request: Any, context: Any, call: Call) -> Any:
        try:
            metadata.check_model(self._engine, self._name, request.name, request.version)
        except Fault:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=why_not_ready(self._engine) is None)

    @_observed()
    async def ServerMetadata(self, request: Any, context: Any, call: Call) -> Any:
        return pb.ServerMetadataResponse(**metadata.server_metadata())

    @_observed()
    async def ModelMetadata(self, request: Any, context: Any, call: Call) -> Any:
        metadata.check_model(self._engine, self._name, request.name, request.version)
        return pb.ModelMetadataResponse(**metadata.model_metadata(self._engine, self._name))

    @_observed()
    async def ModelConfig(self, request: Any, context: Any, call: Call) -> Any:
        metadata.check_model(self._engine, self._name, request.name, request.version)
        return pb.ModelConfigResponse(config=metadata.model_config(self._engine, self._name))

    @_observed()
    async def ModelInfer(self, request: Any, context: Any, call: Call) -> Any:
        engine, version = self._engine, request.model_version
        metadata.check_model(engine, self._name, request.model_name, version)
        parameters = _read_parameters(request.parameters)
        infer.check_parameters(parameters)
        for output in request.outputs:
            refuse_shared_memory(f"outputs.{output.name}.", output.parameters)
        names = infer.check_outputs([output.name for output in request.outputs])
        requests = infer.read_requests(
            read_inputs(request), parameters, self._http.max_requests, self._http.max_depth
        )
        deadline_ms = _deadline_ms(context, infer.read_timeout(parameters))
        answers = await infer.answer(engine, requests, call.client, deadline_ms, version)
        call.answers.extend(given for given in answers if isinstance(given, Answer))
        response = pb.ModelInferResponse(
            model_name=self._name, model_version=infer.common_version(answers), id=request.id
        )
        for tensor in infer.make_outputs(answers, names, engine.index.num_levels):
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            response.raw_output_contents.append(encode_binary(tensor))
        return response


class _Undecodable(grpc.aio.ServerInterceptor):
    """Answers bytes that are no such message; gRPC would say INTERNAL, with a Python class."""

    async def intercept_service(self, continuation: Callable, details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or handler.unary_unary is None:
            return handler
        decode, method = handler.request_deserializer, handler.unary_unary

        def decode_or_none(data: bytes) -> Any:
            try:
                return decode(data)
            except DecodeError:
                return None

        async def run(request: Any, context: grpc.aio.ServicerContext) -> Any:
            if request is None:
                message = "body: expected the message of this method, got bytes that are none"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
            return await method(request, context)

        return grpc.unary_unary_rpc_method_handler(run, decode_or_none, handler.response_serializer)


class _Health(health_pb2_grpc.HealthServicer):
    """`Check` only: `Watch` stays unimplemented, which clients take as a cue not to watch."""

    def __init__(self, engine: Engine):
        self._engine = engine

    async def Check(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        if request.service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        ready = why_not_ready(self._engine) is None
        serving = health_pb2.HealthCheckResponse
        return serving(status=serving.SERVING if ready else serving.NOT_SERVING)


def read_inputs(request: Any) -> list[Tensor]:
    """Return the input tensors of a `ModelInferRequest`, from either form of contents.

    Raises:
        RequestError: if a tensor is not what its shape and datatype say.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        message = f"expected an entry for each of {len(request.inputs)} inputs, got {len(raw)}"
        raise RequestError("raw_input_contents", message)
    tensors = []
    for position, entry in enumerate(request.inputs):
        refuse_shared_memory(f"inputs.{entry.name}.", entry.parameters)
        if not raw:
            tensors.append(_read_contents(entry))
        elif entry.HasField("contents"):
            raise wrong_input(entry.name, "has contents beside raw_input_contents")
        else:
            shape = tuple(entry.shape)
            tensors.append(decode_binary(entry.name, entry.datatype, shape, raw[position]))
    return tensors


def _read_contents(entry: Any) -> Tensor:
    field = _CONTENTS.get(entry.datatype)
    for other, _ in entry.contents.ListFields():
        if other.name != field:
            raise wrong_input(entry.name, f"{other.name} does not hold {entry.datatype!r}")
    values = getattr(entry.contents, field) if field else ()
    return decode_values(entry.name, entry.datatype, tuple(entry.shape), values)


def _read_parameters(parameters: Any) -> dict[str, Any]:
    read = {}
    for key, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise RequestError(f"parameters.{key}", "has no value")
        read[key] = getattr(value, choice)
    return read


def _deadline_ms(context: grpc.aio.ServicerContext, asked_ms: float | None) -> float | None:
    left_s = context.time_remaining()
    given = [asked_ms] if asked_ms is not None else []
    given += [max(left_s, 0.0) * 1e3] if left_s is not None else []
    return min(given, default=None)


def _trailer(
    error: Exception, code: grpc.StatusCode, fault: Fault, request_id: str
) -> tuple[tuple[str, str | bytes], ...]:
    """Return the id under which the log has the call, and when to retry it."""
    if code is grpc.StatusCode.INTERNAL:
        _log.error("unexpected fault", exc_info=error, extra={"fields": {"request_id": request_id}})
    trailer: list[tuple[str, str | bytes]] = [("x-request-id", request_id)]
    if isinstance(error, Overloaded):
        delay = Duration()
        delay.FromMicroseconds(round(error.retry_after_s * 1e6))
        status = Status(code=code.value[0], message=f"{fault.field}: {fault.message}")
        status.details.add().Pack(RetryInfo(retry_delay=delay))
        trailer += [
            ("grpc-status-details-bin", status.SerializeToString()),
            ("grpc-retry-pushback-ms", str(round(error.retry_after_s * 1e3))),
        ]
    return tuple(trailer)
