"""Requests in, eligible ads out: the whole way through (GRACE, section 2.1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.catalog.values import describe
from grace.decode import BeamPlan, Beams, check_device, full_plan
from grace.errors import ConfigError, RequestError
from grace.index import MATCHERS, Index
from grace.index.bits import MAX_REQUESTS
from grace.retrieve.found import Found, find_ads
from grace.retrieve.paths import check_precision, choose_path
from grace.retrieve.request import Request, check_top_k, read_requests, readable_id
from grace.retrieve.result import Result, StepTrace, Trace
from grace.retrieve.searching import Inputs, Searching


class Retriever:
    """Answers requests with the ads that a model wants and the request may see.

    Args:
        index: a built index.
        model: a checkpoint directory, a folder of a T5 (docs/t5.md), a loaded
            `grace.model.EncoderDecoder` or `grace.model.t5.T5`, or any object with
            `start(features)` and `step(state, parents, tokens)`; see docs/generators.md. The first
            four are copied: after more training make a new retriever.
        plan: widths of the search; by default 256 wherever the trie is as wide.
        matching: what keeps beams: `off` (nothing; SIDs outside the catalogue are dropped at the
            end), `valid` (the catalogue), `bitmask+bloom`, `static-kway`, `dynamic-kway` (GRACE's
            matchers) or `exact`.
        device: where the model, the matcher and the search run; the last filter is the CPU's.
        precision: of the decoder: `float32`, `bfloat16`, `float8` (docs/fp8.md), or `auto`: float32
            on a CPU, bfloat16 on a GPU. Other models than Grace's compute as they like.
        table_bytes: the most memory that tables of the first layer may take
            (docs/decode-performance.md); by default 2 GiB on a GPU and none on a CPU.
        batch_size: requests decoded together, at most 32.
        top_k: ads per request, unless the request says otherwise; None returns all.

    Raises:
        ConfigError: if the plan is for SIDs of another length, an option is out of range, or the
            device is not there.
        ModelError: if the checkpoint is damaged or does not fit the index.
        TypeError: if index, model or plan is of another type.
    """

    def __init__(
        self,
        index: Index,
        model: Any,
        plan: BeamPlan | None = None,
        matching: str = "exact",
        device: str = "cpu",
        batch_size: int = 16,
        top_k: int | None = None,
        precision: str = "auto",
        table_bytes: int | None = None,
    ):
        if matching not in MATCHERS:
            raise ConfigError(f"matching must be one of {', '.join(MATCHERS)}, got {matching!r}")
        check_integer("batch_size", batch_size, 1, MAX_REQUESTS)
        if table_bytes is not None:
            check_integer("table_bytes", table_bytes, 0, None)
        try:
            self.top_k = check_top_k(top_k)
        except RequestError as error:
            raise ConfigError(str(error)) from None
        if not isinstance(index, Index):
            raise TypeError(f"index must be a grace.Index, got {type(index).__name__}")
        if not isinstance(plan, BeamPlan | None):
            raise TypeError(f"plan must be a grace.BeamPlan, got {type(plan).__name__}")
        check_device(device)
        check_precision(precision)
        self.index = index
        self.matching = matching
        self.batch_size = batch_size
        plan = plan or full_plan(index.num_levels)
        fitted = plan.limited(index.level_sizes)
        # Outside the trie there are more prefixes than nodes: the search stops at M * V by itself.
        self.plan = plan if matching == "off" else fitted
        self._path = choose_path(
            model, index, device, precision, matching, self.plan, batch_size, table_bytes
        )

    def retrieve(self, requests: Sequence[dict], trace: bool = False) -> list[Result]:
        """Answer requests, in their order; a wrong one fails alone, in its result's `error`.

        Args:
            requests: `{"id", "attributes": {name: value | [values] | null}, "features": {...},
                "at"?: ISO 8601 time with its zone (now if absent), "top_k"?: int}`.
            trace: whether results tell how many beams each step spent and how long stages took.
        """
        if isinstance(requests, dict | str | bytes):
            kind = type(requests).__name__
            raise TypeError(f"requests must be a sequence of requests, got one {kind}")
        results: list[Result | None] = [None] * len(requests)
        accepted: list[tuple[int, Request]] = []
        for first in range(0, len(requests), self.batch_size):
            raws = requests[first : first + self.batch_size]
            for position, outcome in enumerate(self.read(raws), start=first):
                if isinstance(outcome, Request):
                    accepted.append((position, outcome))
                elif isinstance(outcome, RequestError):
                    results[position] = Result.failed(readable_id(requests[position]), outcome)
                else:
                    raise outcome
        for first in range(0, len(accepted), self.batch_size):
            batch = accepted[first : first + self.batch_size]
            answers = self._answer([request for _, request in batch], trace)
            for (position, _), answer in zip(batch, answers, strict=True):
                results[position] = answer
        return results

    # The stages that every batch goes through. A server runs those of successive batches side by
    # side; the searches of one retriever are in the order of their launches.

    def read(self, raws: Sequence[object]) -> list[Request | Exception]:
        """Check and read requests, some perhaps `RequestText`.

        In the place of a wrong one stands its `RequestError`.
        """
        return read_requests(raws, self.index, self._path)

    def inputs(self, requests: Sequence[Request]) -> Inputs:
        """Turn the features of at most `batch_size` requests into tensors."""
        return self._path.inputs([request.features for request in requests])

    def launch(self, requests: Sequence[Request], inputs: Inputs, trace: bool) -> Searching:
        """Begin the search for these requests; see `Path.launch`."""
        features = [request.features for request in requests]
        targetings = [request.targeting for request in requests]
        return self._path.launch(features, inputs, targetings, trace)

    def find(
        self, requests: Sequence[Request], searching: Searching, beams: Beams, trace: bool
    ) -> tuple[list[Found], list[Trace | None]]:
        """Return these requests' eligible ads, and traces if asked.

        Args:
            requests: as they were launched.
            searching: what `launch` returned.
            beams: what its `wait` returned.
            trace: whether the search was launched with it.
        """
        with searching.stages.stage("filter"):
            found = find_ads(self.index, requests, beams, searching.unknown_items, self.top_k)
        return found, self._traces(requests, searching, beams) if trace else [None] * len(found)

    @property
    def inputs_device(self) -> str:
        """Where `launch` wants the tensors of `inputs`: on a GPU it only enqueues the search."""
        return self._path.inputs_device

    def warm(self) -> None:
        """Do what the first batch would otherwise have to wait for."""
        self._path.warm()

    def _answer(self, requests: list[Request], trace: bool) -> list[Result]:
        start = time.perf_counter()
        inputs = self.inputs(requests)
        encode_ms = (time.perf_counter() - start) * 1e3
        searching = self.launch(requests, inputs, trace)
        stages = searching.stages
        stages["prefill"] = stages.get("prefill", 0.0) + encode_ms
        found, traces = self.find(requests, searching, searching.wait(), trace)
        return [
            Result.of(request.id, one, self.index, how)
            for request, one, how in zip(requests, found, traces, strict=True)
        ]

    def _traces(
        self, requests: Sequence[Request], searching: Searching, beams: Beams
    ) -> list[Trace]:
        verdict = searching.verdict
        how = self.matching if verdict is None else verdict.how
        exact = verdict.words if self.matching == "exact" else None
        if exact is None or exact.device.type != "cpu":
            exact = self.index.match("exact", [request.targeting for request in requests]).words
        return [
            Trace(_steps(beams, exact, b), searching.stages, len(requests), how)
            for b in range(len(requests))
        ]


def check_integer(name: str, value: object, least: int, most: int | None) -> None:
    """Refuse an option that is no integer in its range.

    Raises:
        ConfigError: naming the option, the range and what came.
    """
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} must be an integer {bounds}, got {describe(value)}")


def _steps(beams: Beams, exact: Tensor, b: int) -> list[StepTrace]:
    steps = []
    for nodes, scores in zip(beams.entered, beams.entered_scores, strict=True):
        live = scores[b] > -torch.inf
        reached = nodes[b, live]
        useful = (reached >= 0) & (exact[reached.clamp_min(0)] >> b & 1 != 0)
        steps.append(StepTrace(int(live.sum()), int((~useful).sum())))
    return steps
