"""The port of those who run a server: pause ads, move between versions, see how it stands."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from grace.catalog.values import describe
from grace.errors import CatalogError, GraceError, IndexFormatError, RequestError
from grace.index import Index
from grace.index.reader import IndexReader
from grace.index.versions import list_versions, rollback
from grace.serve.calls import Observer
from grace.serve.config import ServeConfig
from grace.serve.engine import Engine
from grace.serve.faults import Fault, json_response
from grace.serve.front import Front, answer_fault
from grace.serve.limits import read_json
from grace.serve.metrics import Metrics
from grace.serve.security import Tokens, is_loopback

CHANGES: dict[str, Callable[[Index, list], None]] = {
    "pause": Index.pause,
    "resume": Index.resume,
    "bid-off": Index.bid_off,
    "bid-on": Index.bid_on,
}

_log = logging.getLogger(__name__)


def build_admin_app(engine: Engine, config: ServeConfig, tokens: Tokens | None = None) -> Starlette:
    """Return the application for `config.admin`, a port of its own.

    A change of ads is on disk, and seen by the next batch, before it is acknowledged; the calls are
    in docs/live-change.md. `ServeConfig` sees to it that beyond loopback there are tokens.

    Args:
        engine: whose index changes.
        config: `admin.token_file`, and limits as `http` has them.
        tokens: of that file, where it is read already.

    Raises:
        ConfigError: if the file of tokens cannot be read.
    """
    if tokens is None and config.admin.token_file:
        tokens = Tokens.load(config.admin.token_file, "admin.token_file")

    def route(path: str, method: str, act: Callable[[dict], dict], keys: tuple[str, ...]) -> Route:
        async def handle(request: Request) -> Response:
            if tokens is None:
                _refuse_pages(request)
            body = await _read_object(request, config, keys) if method == "POST" else {}
            done = await run_in_threadpool(act, body)  # it waits for the disk
            if method == "POST":
                client = request.state.call.client
                _log.info("admin: %s", path, extra={"fields": {"client": client} | done})
            return json_response(done)

        return Route(f"/admin/{path}", handle, methods=[method])

    app = Starlette(
        routes=[
            *(route(name, "POST", _switching(engine, name), ("ad_ids",)) for name in CHANGES),
            route("refresh", "POST", lambda body: _refresh(_reader(engine)), ()),
            route("rollback", "POST", lambda body: _roll_back(_reader(engine), body), ("to",)),
            route("versions", "GET", lambda body: _versions(_reader(engine)), ()),
            route("status", "GET", lambda body: _status(engine), ()),
        ],
        middleware=[
            Middleware(
                Front,
                config=config.http,
                observer=Observer(config.telemetry, Metrics(engine), None),
                tokens=tokens,
            )
        ],
        exception_handlers=dict.fromkeys((Fault, RequestError, HTTPException), answer_fault),
    )
    app.router.redirect_slashes = False
    return app


def _switching(engine: Engine, change: str) -> Callable[[dict], dict]:
    def switch(body: dict) -> dict:
        ad_ids = body.get("ad_ids")
        if not isinstance(ad_ids, list) or not ad_ids:
            expected = "expected a list of at least one id of an ad"
            raise RequestError("ad_ids", f"{expected}, got {describe(ad_ids)}")
        try:
            index = engine.index
            CHANGES[change](index, ad_ids)
        except CatalogError as error:
            message = f"expected ads of version {index.version}; {error}; nothing was changed"
            raise RequestError("ad_ids", message) from None
        except (IndexFormatError, OSError) as error:
            _log.exception("ads cannot be switched")
            message = f"{_reason(error)}; whether the change holds is not known: repeat it"
            raise Fault(503, "index", message, "disk") from None
        return {"version": str(index.version), "ads": len(ad_ids)}

    return switch


def _refresh(reader: IndexReader) -> dict:
    try:
        return {"version": reader.refresh().version}
    except Exception as error:  # whatever keeps a version out: files, model, memory of a device
        message = f"stays at version {reader.held.version}: {_reason(error)}"
        raise Fault(409, "index", message, "stuck") from None


def _roll_back(reader: IndexReader, body: dict) -> dict:
    to = body.get("to")
    try:
        stored = [version.version for version in list_versions(reader.directory)]
        if to is not None and to not in stored:
            expected = f"expected one of the versions on disk, {', '.join(stored)}"
            raise RequestError("to", f"{expected}, got {describe(to)}")
        # Nothing is removed now: whoever goes back may want to go further, or forth again.
        publication = rollback(reader.directory, to, keep=sys.maxsize)
    except (IndexFormatError, OSError) as error:
        raise Fault(409, "index", _reason(error), "disk") from None
    return _refresh(reader) | {"watermark": publication.watermark}


def _versions(reader: IndexReader) -> dict:
    try:
        return {"versions": [version.to_dict() for version in list_versions(reader.directory)]}
    except (IndexFormatError, OSError) as error:
        raise Fault(503, "index", _reason(error), "disk") from None


def _status(engine: Engine) -> dict:
    status = engine.status()
    index = engine.retriever.index if engine.reader is None else engine.reader.held
    flags = index.ad_state
    return status | {
        "ads": index.num_ads,
        "sids": index.num_sids,
        "paused_ads": int((flags & 1).ne(0).sum()),
        "bid_off_ads": int((flags & 2).ne(0).sum()),
    }


def _reader(engine: Engine) -> IndexReader:
    if engine.reader is None:
        raise Fault(409, "index", "this server follows no directory of versions", "fixed")
    return engine.reader


def _reason(error: Exception) -> str:
    """Say what an operator has to mend; of what is not Grace's or the system's only the kind."""
    if isinstance(error, OSError):
        return f"{error.filename or 'the disk'}: {error.strerror or error}"
    return str(error) if isinstance(error, GraceError) else f"{type(error).__name__}; see the log"


async def _read_object(request: Request, config: ServeConfig, keys: tuple[str, ...]) -> dict:
    """Return a body's object; no body at all is an empty one."""
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return {}
    body = await read_json(request, config.http.max_depth, config.http.body_timeout_s)
    if not isinstance(body, dict):
        raise RequestError("body", f"expected an object, got {describe(body)}")
    for key in body:
        if key not in keys:
            expected = f"expected {' or '.join(keys)}" if keys else "expected no key"
            raise RequestError(key, f"unknown key; {expected}")
    return body


def _refuse_pages(request: Request) -> None:
    """Refuse what a page in a browser on this machine sent here: without tokens it would be done.

    Raises:
        Fault: 403, naming the header.
    """
    if "origin" in request.headers:
        raise Fault(403, "origin", "pages may not call this port", "page")
    host = re.sub(r":\d+$", "", request.headers.get("host", "")).strip("[]")
    if not is_loopback(host):  # a name that somebody else's DNS points here
        raise Fault(403, "host", f"expected a loopback name, got {describe(host)}", "page")
