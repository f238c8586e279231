"""One infer call, whatever brought it: tensors → requests → answers → tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from grace.catalog.values import describe
from grace.errors import RequestError
from grace.serve.answer import Answer
from grace.serve.engine import Engine, Expired, Ticket
from grace.serve.faults import Fault
from grace.serve.kserve.codec import Tensor, wrong_input
from grace.serve.kserve.metadata import COLUMNS, OUTPUTS, REQUEST, TensorInfo, check_version
from grace.serve.limits import parse_json
from grace.serve.ticket import LATE

PARAMETERS = ("top_k", "timeout", "binary_data_output")
_JSON_COLUMNS = ("attributes", "features")


def check_parameters(parameters: dict[str, Any]) -> None:
    """Refuse parameters that a call does not have: a misspelt one would otherwise be ignored.

    Raises:
        RequestError: naming the parameter.
    """
    for key in parameters:
        if key not in PARAMETERS:
            message = f"unknown parameter; a call has {', '.join(PARAMETERS)}"
            raise RequestError(f"parameters.{key}", message)


def read_timeout(parameters: dict[str, Any]) -> float | None:
    """Return the parameter `timeout`, microseconds, in milliseconds; None where absent or 0.

    Raises:
        RequestError: if it is no integer of at least 0.
    """
    value = _read_count(parameters, "timeout")
    return value / 1e3 if value else None


def read_requests(
    inputs: Sequence[Tensor], parameters: dict[str, Any], max_requests: int, max_depth: int
) -> list[dict | RequestError]:
    """Return the requests of a call, each as `Engine.submit` takes it or what is wrong with it.

    Args:
        inputs: `request`, or columns.
        parameters: of the call; `top_k` counts for requests that have none of their own.
        max_requests: the most that one call may bring.
        max_depth: of each request's JSON.

    Raises:
        RequestError: if the tensors are not those of the model's metadata, or disagree.
    """
    top_k = _read_count(parameters, "top_k")
    tensors = {tensor.name: tensor for tensor in inputs}
    if len(tensors) != len(inputs):
        raise RequestError("inputs", "two have the same name")
    if REQUEST.name in tensors and len(tensors) > 1:
        raise RequestError("inputs", "`request` holds whole requests: give it alone, or columns")
    known = {info.name: info for info in (REQUEST, *COLUMNS)}
    for tensor in inputs:
        _check_input(tensor, known)
    sizes = {tensor.shape[0] for tensor in inputs}
    if len(sizes) != 1 or not 0 < (rows := sizes.pop()) <= max_requests:
        shapes = ", ".join(f"{t.name} {list(t.shape)}" for t in inputs) or "no input"
        message = f"expected 1 to {max_requests} requests, the same number in all, got {shapes}"
        raise RequestError("inputs", message)
    if REQUEST.name in tensors:
        requests = [_parse(text, max_depth) for text in tensors[REQUEST.name].values]
    else:
        requests = [_assemble(tensors, row, max_depth) for row in range(rows)]
    if top_k is not None:
        for request in requests:
            if isinstance(request, dict):
                request.setdefault("top_k", top_k)
    return requests


def check_outputs(names: Sequence[str]) -> list[str]:
    """Return the outputs to give, all where none is named.

    Raises:
        RequestError: if one is unknown or named twice.
    """
    known = [info.name for info in OUTPUTS]
    for name in names:
        if name not in known:
            message = f"expected some of {', '.join(known)}, got {describe(name)}"
            raise RequestError("outputs", message)
    if len(set(names)) != len(names):
        raise RequestError("outputs", "one is named twice")
    return list(names) or known


async def answer(
    engine: Engine,
    requests: Sequence[dict | RequestError],
    client: str,
    timeout_ms: float | None,
    version: str = "",
) -> list[Answer | RequestError]:
    """Answer the requests of one call; cancelled, it cancels them.

    Args:
        engine: which answers.
        requests: from `read_requests`.
        client: whose they are.
        timeout_ms: from now to their deadline, or None for the engine's.
        version: the one the client insists on, or empty.

    Returns:
        Per request its answer, or what is wrong with it.

    Raises:
        RequestError: if the call has only one request and it is wrong.
        Overloaded, Draining: if not all of them are admitted; none is answered then.
        Expired: if the deadline passed before all were answered.
        Fault: 404 if the index moved on from `version` meanwhile.
    """
    timeout_ms = engine.options.timeout_ms if timeout_ms is None else timeout_ms
    rows = [row for row, request in enumerate(requests) if isinstance(request, dict)]
    admitted = engine.submit_all([requests[row] for row in rows], client, timeout_ms)
    tickets: dict[int, Ticket] = dict(zip(rows, admitted, strict=True))
    try:
        futures = [asyncio.wrap_future(ticket.future) for ticket in tickets.values()]
        async with asyncio.timeout(timeout_ms / 1e3):
            done = dict(zip(tickets, await asyncio.gather(*futures), strict=True))
    except TimeoutError:
        raise Expired(LATE) from None
    finally:
        for ticket in tickets.values():
            if not ticket.future.done():
                ticket.cancel()
    answers = [done.get(row, request) for row, request in enumerate(requests)]
    if len(answers) == 1 and (error := _error(answers[0])) is not None:
        raise error
    if version:
        for given in done.values():
            check_version(version, given.version)
    return answers


def common_version(answers: Sequence[Answer | RequestError]) -> str:
    """Return the index version of all answers, or empty where a swap came between them."""
    versions = {given.version for given in answers if isinstance(given, Answer)}
    return versions.pop() if len(versions) == 1 else ""


def make_outputs(
    answers: Sequence[Answer | RequestError], names: Sequence[str], num_levels: int
) -> list[Tensor]:
    """Return the named outputs.

    Args:
        answers: of n requests, N ads in all.
        names: from `check_outputs`.
        num_levels: L.
    """
    return [_OUTPUT_MAKERS[name](name, answers, num_levels) for name in names]


def _check_input(tensor: Tensor, known: dict[str, TensorInfo]) -> None:
    info = known.get(tensor.name)
    if info is None:
        raise RequestError("inputs", f"expected {', '.join(known)}, got {describe(tensor.name)}")
    if tensor.datatype not in info.datatypes:
        expected = " or ".join(info.datatypes)
        raise wrong_input(tensor.name, f"datatype must be {expected}, got {tensor.datatype}")
    if len(tensor.shape) != 1:
        raise wrong_input(tensor.name, f"shape must be [n], got {list(tensor.shape)}")


def _read_count(parameters: dict[str, Any], name: str) -> int | None:
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        message = f"expected an integer of at least 0, got {describe(value)}"
        raise RequestError(f"parameters.{name}", message)
    return value


def _parse(text: bytes, max_depth: int) -> dict | RequestError:
    try:
        request = parse_json(text, max_depth)
    except Fault as fault:
        return RequestError("request", fault.message)
    if not isinstance(request, dict):
        return RequestError("request", f"expected an object, got {describe(request)}")
    return request


def _assemble(tensors: dict[str, Tensor], row: int, max_depth: int) -> dict | RequestError:
    request: dict = {"id": row}
    for name, tensor in tensors.items():
        value = tensor.values[row]
        if not isinstance(value, bytes):
            request[name] = int(value)
            continue
        try:
            if name in _JSON_COLUMNS:
                request[name] = parse_json(value, max_depth)
            else:
                request[name] = value.decode("utf-8")
        except Fault as fault:
            return RequestError(name, fault.message)
        except UnicodeDecodeError:
            return RequestError(name, "expected UTF-8")
    return request


def _error(given: Answer | RequestError) -> RequestError | None:
    return given if isinstance(given, RequestError) else given.error


def _good(answers: Sequence[Answer | RequestError]) -> list[Answer]:
    return [given for given in answers if isinstance(given, Answer)]


def _ad_ids(name: str, answers: Sequence, num_levels: int) -> Tensor:
    ids = [
        str(ad_id).encode("utf-8")
        for given in _good(answers)
        for ad_id in given.index.take_ad_ids(given.positions)
    ]
    return Tensor(name, "BYTES", (len(ids),), ids)


def _scores(name: str, answers: Sequence, num_levels: int) -> Tensor:
    scores = np.concatenate([np.empty(0, np.float32), *(g.scores for g in _good(answers))])
    return Tensor(name, "FP32", scores.shape, scores)


def _sids(name: str, answers: Sequence, num_levels: int) -> Tensor:
    # An answer that is an error has no SIDs, of no length.
    rows = [given.sids for given in _good(answers) if len(given.sids)]
    sids = np.concatenate([np.empty((0, num_levels), np.int64), *rows])
    return Tensor(name, "INT64", sids.shape, sids.ravel())


def _counts(name: str, answers: Sequence, num_levels: int) -> Tensor:
    counts = [len(given.positions) if isinstance(given, Answer) else 0 for given in answers]
    return Tensor(name, "INT64", (len(counts),), np.array(counts, np.int64))


def _texts(read_text: Any) -> Any:
    def make(name: str, answers: Sequence, num_levels: int) -> Tensor:
        texts = [read_text(given) for given in answers]
        return Tensor(name, "BYTES", (len(texts),), texts)

    return make


def _version(given: Answer | RequestError) -> bytes:
    return given.version.encode() if isinstance(given, Answer) else b""


def _funnel(given: Answer | RequestError) -> bytes:
    # An attribute's name may be of any script: the funnel's keys are text as it is.
    return orjson.dumps(given.funnel if isinstance(given, Answer) else {})


def _message(given: Answer | RequestError) -> bytes:
    error = _error(given)
    return b"" if error is None else str(error).encode("utf-8")


_OUTPUT_MAKERS = {
    "ad_ids": _ad_ids,
    "scores": _scores,
    "sids": _sids,
    "counts": _counts,
    "version": _texts(_version),
    "funnel": _texts(_funnel),
    "error": _texts(_message),
}
