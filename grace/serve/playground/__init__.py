"""The playground: a page at `/` that shows how one user is answered, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute

from grace.errors import CatalogError, ConfigError
from grace.serve.engine import Engine
from grace.serve.playground.api import Api
from grace.serve.playground.pages import page_routes
from grace.serve.playground.people import People
from grace.serve.playground.searches import Searches
from grace.serve.playground.titles import Titles

__all__ = ["routes"]


def routes(engine: Engine, config: Any) -> list[BaseRoute]:
    """Return the playground's routes: `/`, its files and `/playground/api/`.

    Files that the config leaves open are looked for beside the index, where `grace demo` puts them.

    Args:
        engine: answers in the mode that is served.
        config: `.playground` (`enabled`, `people`: a file of requests, `catalog`: the catalogue's
            file, for titles), `.index.directory`, `.model` (`device`, `precision`).

    Returns:
        No routes where the playground is off.

    Raises:
        ConfigError: if a file that the config names cannot be read.
    """
    if not config.playground.enabled:
        return []
    beside = config.index.directory and Path(config.index.directory).parent
    people = People(_file(config.playground.people, beside, "requests.jsonl"))
    catalog = _file(config.playground.catalog, beside, "catalog.jsonl", "catalog.parquet")
    try:
        titles = Titles(catalog)
    except CatalogError as error:
        raise ConfigError(f"playground.catalog: {error}") from None
    searches = Searches(engine, config.model)
    return [*page_routes(), *Api(engine, searches, people, titles).routes()]


def _file(named: str, beside: Path | str, *names: str) -> Path | None:
    """Return a file that is named, or one that lies beside the index, or None."""
    if named:
        return Path(named)
    found = [Path(beside) / name for name in names if beside and (Path(beside) / name).is_file()]
    return found[0] if found else None
