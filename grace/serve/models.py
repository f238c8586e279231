"""The bodies of `/v1` as pydantic models: what OpenAPI says, and what tests hold replies against.

Requests are not read through them: the engine checks them against the index's own schema.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Id = str | Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RetrieveRequest(_Strict):
    """One user at one point in time."""

    id: Id = Field(description="Echoed in the answer.")
    attributes: dict[str, Any] | None = Field(
        None, description="Targeting attributes: {name: value | [values] | null}."
    )
    features: dict[str, Any] | None = Field(None, description="What the model reads.")
    at: str | None = Field(
        None, description="ISO 8601 time with its zone; now if absent.",
        examples=["2026-01-31T00:00:00Z"],
    )  # fmt: skip
    top_k: int | None = Field(None, ge=0, description="Ads to return; by default the server's.")


class RetrieveRequests(_Strict):
    """Several requests in one body, admitted together or not at all."""

    requests: list[RetrieveRequest] = Field(min_length=1)


class Ad(_Strict):
    """One retrieved ad."""

    ad_id: Id
    sid: list[int] = Field(description="Its Semantic ID.")
    score: float = Field(description="Log-probability of the SID.")


class Funnel(_Strict):
    """Counts of what was left after each stage."""

    generated_sids: int
    catalog_sids: int
    eligible_sids: int
    expanded_ads: int
    dropped: dict[str, int] = Field(
        description="Ads refused, by the first reason: paused, bid_off, window or an attribute."
    )
    eligible_ads: int
    returned_ads: int
    unknown_items: int


class RetrieveResponse(_Strict):
    """Eligible ads by score descending, then SID, then ad id."""

    id: Id
    version: str = Field(description="The index version that answered, all of it.")
    ads: list[Ad]
    funnel: Funnel


class FieldError(_Strict):
    """Why one of several requests has no answer."""

    field: str
    message: str


class FailedResponse(_Strict):
    """One of several responses, of a request that failed alone."""

    id: Id | None
    version: str | None = None
    error: FieldError


class RetrieveResponses(_Strict):
    """One for each request, in order."""

    responses: list[RetrieveResponse | FailedResponse]


class Error(_Strict):
    """What went wrong."""

    field: str = Field(description="A key of the request, a header, `body`, `path` or `server`.")
    message: str
    request_id: str = Field(description="Also in the header x-request-id and the server's log.")


class ErrorResponse(_Strict):
    """Every reply that is no 200."""

    error: Error


class Live(_Strict):
    """The process answers."""

    live: bool


class Ready(_Strict):
    """Whether new requests should be sent here."""

    ready: bool
    reason: str | None = None


class Plan(_Strict):
    """Widths of the search."""

    widths: list[int]
    num_sids: int


class AttributeInfo(_Strict):
    """A targeting attribute that requests may carry."""

    name: str
    kind: str = Field(description="categorical, range or set.")
    values: list[str] | None = None


class Limits(_Strict):
    """The most that one body may be, and the deadline of requests that name none."""

    body_bytes: int
    depth: int
    requests: int
    timeout_ms: float


class ModelInfo(_Strict):
    """What answers."""

    version: str
    ads: int
    sids: int
    levels: int
    vocab_size: int
    attributes: list[AttributeInfo]
    plan: Plan
    matching: str
    top_k: int | None
    device: str
    precision: str
    limits: Limits
