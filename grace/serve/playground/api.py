"""The page's JSON endpoints."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from grace.errors import GraceError, RequestError
from grace.serve.engine import Draining, Engine, Expired, Overloaded
from grace.serve.playground import views
from grace.serve.playground.people import People
from grace.serve.playground.searches import Busy, Searches
from grace.serve.playground.titles import Titles

MOST_BODY_BYTES = 1 << 20
MOST_TEXT = 100
TOP_K = 20
MOST_TOP_K = 100
BASE = "/playground/api"


class Refused(GraceError):
    """A call that is answered with an HTTP status and a sentence."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Api:
    """Endpoints over one engine.

    Args:
        engine: which answers.
        searches: of the other modes.
        people: example users.
        titles: of ads.
    """

    def __init__(self, engine: Engine, searches: Searches, people: People, titles: Titles):
        self._engine, self._searches = engine, searches
        self._people, self._titles = people, titles

    def routes(self) -> list[Route]:
        """Return the routes; what they raise of ours they answer in JSON."""
        get, post = ["GET"], ["POST"]
        return [
            Route(f"{BASE}/people", _told(self.people), methods=get),
            Route(f"{BASE}/people/{{number:int}}", _told(self.person), methods=get),
            Route(f"{BASE}/schema", _told(self.schema), methods=get),
            Route(f"{BASE}/values", _told(self.values), methods=get),
            Route(f"{BASE}/items", _told(self.items), methods=get),
            Route(f"{BASE}/titles", _told(self.titles), methods=post),
            Route(f"{BASE}/compare", _told(self.compare), methods=post),
            Route(f"{BASE}/tree", _told(self.tree), methods=post),
        ]

    async def people(self, request: Request) -> dict:
        """List the example users: `{"people": [label]}`."""
        return {"people": self._people.labels}

    async def person(self, request: Request) -> dict:
        """Return the request of one of them."""
        number = request.path_params["number"]
        if number >= len(self._people):
            raise Refused(404, f"there are {len(self._people)} example users")
        return self._people.request(number)

    async def schema(self, request: Request) -> dict:
        """Say what a request may hold; see `views.schema_view`."""
        return await run_in_threadpool(
            views.schema_view, self._searches, self._engine.index, self._engine.model,
            self._titles, self._people,
        )  # fmt: skip

    async def values(self, request: Request) -> dict:
        """Find values of an attribute by a part of them, `?attribute=&text=`."""
        name, text = request.query_params.get("attribute", ""), _text(request)
        try:
            found = await run_in_threadpool(
                views.find_values, self._engine.index, name, text, self._titles
            )
        except KeyError:
            raise Refused(404, f"no attribute {name[:MOST_TEXT]!r} with values") from None
        return {"values": found}

    async def items(self, request: Request) -> dict:
        """Find ads by a part of their title, `?text=`."""
        found = await run_in_threadpool(self._titles.find, _text(request))
        return {"items": [{"ad_id": ad_id, "title": self._titles.get(ad_id)} for ad_id in found]}

    async def titles(self, request: Request) -> dict:
        """Return the titles of ads, `{"ad_ids": [...]}`, null where there is none."""
        body = await _body(request, {"ad_ids"})
        ad_ids = body.get("ad_ids")
        if not isinstance(ad_ids, list) or not all(type(i) in (str, int) for i in ad_ids):
            raise Refused(400, "ad_ids: expected a list of ids")
        spelled = self._titles.spelled
        return {"titles": [self._titles.get(i) or spelled(str(i)) for i in ad_ids]}

    async def compare(self, request: Request) -> dict:
        """Answer `{"request", "modes"}`; see `views.compare`."""
        body = await _body(request, {"request", "modes"})
        raw, modes = self._raw(body), body.get("modes")
        if not isinstance(modes, list) or not modes or len(set(map(str, modes))) < len(modes):
            raise Refused(400, "modes: expected a list of distinct matching modes")
        for mode in modes:
            self._check_mode(mode)

        def work() -> dict:
            with self._searches.turn():
                index = self._engine.index
                return views.compare(self._searches, index, raw, modes, self._titles)

        return await run_in_threadpool(work)

    async def tree(self, request: Request) -> dict:
        """Answer `{"request", "mode"}`; see `views.tree_view`."""
        body = await _body(request, {"request", "mode"})
        raw, mode = self._raw(body), body.get("mode")
        self._check_mode(mode)

        def work() -> dict:
            with self._searches.turn():
                index = self._engine.index
                tree = self._searches.tree(index, raw, mode)
                return views.tree_view(tree, index, self._titles)

        return await run_in_threadpool(work)

    def _check_mode(self, mode: Any) -> None:
        if mode not in self._searches.modes:
            raise Refused(400, f"matching must be one of {', '.join(self._searches.modes)}")

    def _raw(self, body: dict) -> dict:
        raw = body.get("request")
        if not isinstance(raw, dict):
            raise Refused(400, "request: expected an object")
        top_k = raw.get("top_k", TOP_K)
        if type(top_k) is int and top_k > MOST_TOP_K:
            raise Refused(400, f"top_k: at most {MOST_TOP_K} here")
        return raw | {"id": "playground", "top_k": TOP_K if top_k is None else top_k}


def _told(endpoint: Callable[[Request], Awaitable[dict]]) -> Callable:
    """Answer with what an endpoint returns, or with `{"error": {"message", "field"?}}`."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return JSONResponse(await endpoint(request), headers={"cache-control": "no-store"})
        except RequestError as error:
            return _error(400, error.message, field=error.field)
        except Refused as error:
            return _error(error.status, str(error))
        except Busy as error:
            return _error(429, str(error), retry_after_s=1)
        except Overloaded as error:
            return _error(429, str(error), retry_after_s=max(1, round(error.retry_after_s)))
        except Draining as error:
            return _error(503, str(error))
        except (Expired, TimeoutError) as error:
            return _error(504, str(error) or "the answer took too long")

    return answer


def _error(
    status: int, message: str, field: str | None = None, retry_after_s: int | None = None
) -> Response:
    told = {"message": message} if field is None else {"message": message, "field": field}
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return JSONResponse({"error": told}, status, headers)


async def _body(request: Request, keys: set[str]) -> dict:
    """Return a small JSON object.

    Raises:
        Refused: if it is none, is too large, or has other keys.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY_BYTES:
            raise Refused(413, f"a body has at most {MOST_BODY_BYTES} bytes")
    try:
        parsed = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(parsed, dict):
        raise Refused(400, "the body must be an object")
    for key in parsed:
        if key not in keys:
            raise Refused(400, f"the body has no key {key[:MOST_TEXT]!r}")
    return parsed


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _text(request: Request) -> str:
    text = request.query_params.get("text", "")
    if len(text) > MOST_TEXT:
        raise Refused(400, f"text: at most {MOST_TEXT} characters")
    return text
