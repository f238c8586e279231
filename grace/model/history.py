"""Features of models that read histories of items: what they may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grace.catalog.values import INT64_MAX, describe
from grace.errors import RequestError

NAMES = ("history", "user")


def check_history(features: Any) -> None:
    """Refuse what is not `{"history": [ad ids, oldest first], "user"?: number}`, both optional.

    Raises:
        RequestError: whose `field` is `features` or `features.<name>...`.
    """
    if not isinstance(features, Mapping):
        raise RequestError("features", f"expected an object, got {describe(features)}")
    for name in features:
        if name not in NAMES:
            raise RequestError(
                f"features.{name}",
                f"the model reads no such field; it reads: {', '.join(NAMES)}",
            )
    history = history_of(features)
    if not isinstance(history, list | tuple):
        raise RequestError(
            "features.history", f"expected a list of ad ids, got {describe(history)}"
        )
    for place, ad_id in enumerate(history):
        if type(ad_id) not in (str, int):
            raise RequestError(
                f"features.history[{place}]",
                f"expected a string or an integer, got {describe(ad_id)}",
            )
    user = features.get("user")
    if user is not None and (type(user) is not int or not 0 <= user <= INT64_MAX):
        raise RequestError(
            "features.user", f"expected an integer from 0 to 2^63 - 1, got {describe(user)}"
        )


def history_of(features: Mapping[str, Any]) -> Any:
    """Return the history of checked features, empty where there is none."""
    history = features.get("history")
    return [] if history is None else history
