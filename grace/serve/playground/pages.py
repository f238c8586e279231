"""The page's own files, read once: no path from a request reaches the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Everything comes from here, and nothing inline runs."""


def page_routes() -> list[Route]:
    """Return `/` and the files that it names, under `/playground/`."""
    return [
        _route("/" if path.name == "index.html" else f"/playground/{path.name}", path)
        for path in sorted(FOLDER.iterdir())
        if path.suffix in TYPES
    ]


def _route(url: str, path: Path) -> Route:
    content = path.read_bytes()
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
        "etag": f'"{hashlib.sha256(content).hexdigest()[:20]}"',
    }

    async def file(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=TYPES[path.suffix], headers=headers)

    return Route(url, file, methods=["GET"])
