"""From features and targeting to beams: the two ways a batch may go."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from grace.decode import (
    BeamPlan,
    Beams,
    CoreGenerator,
    Generator,
    ProtocolGenerator,
    StepSearch,
    beam_search,
)
from grace.errors import ConfigError
from grace.index import Index
from grace.index.host_matcher import HostMatcher
from grace.index.on_device import DeviceIndex
from grace.index.rules import CompiledTargeting
from grace.index.verdict import Verdict
from grace.model import EncoderDecoder
from grace.model.folder import open_model
from grace.model.step_decoder import PRECISIONS
from grace.model.step_layer import can_be_packed
from grace.model.t5 import T5
from grace.model.t5.generator import T5Generator
from grace.retrieve.own_model import OwnModel, StepGenerator

TABLE_BYTES = 2**31
"""Of prefix tables on a GPU: the paper's first three levels, 1.5 % of an H200's memory."""


@dataclass
class Searched:
    """A batch after its search.

    Attributes:
        beams: the SIDs.
        verdict: of the matcher; None where nothing is asked of requests.
        unknown_items: per request, behaviour on items that the index does not know.
        stages: milliseconds of each stage.
    """

    beams: Beams | None = None
    verdict: Verdict | None = None
    unknown_items: list[int] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Note how long the block takes."""
        start = time.perf_counter()
        yield
        self.stages[name] = (time.perf_counter() - start) * 1e3


class Path(Protocol):
    """One way to search; any thread may call it."""

    def check(self, features: dict) -> None:
        """Raise RequestError if one request's features cannot be read."""

    def search(
        self, features: Sequence[dict], targetings: Sequence[CompiledTargeting], trace: bool
    ) -> Searched:
        """Search for a batch of requests that passed the checks."""


class GeneratorPath:
    """Any generator, step by step from Python; selection where the trie is.

    Args:
        generator: the model.
        index: a version.
        device: where the generator runs, and selection in a trie.
        matching: the mode.
        plan: widths.
    """

    def __init__(
        self, generator: Generator, index: Index, device: str, matching: str, plan: BeamPlan
    ):
        self._generator, self._index, self._plan = generator, index, plan
        self._inside, self._matching = matching != "off", matching
        on_device = torch.device(device).type == "cuda" and self._inside
        self._on_device = DeviceIndex(index, device, matching) if on_device else None
        # What a device's matcher says holds until its next batch, so one batch at a time.
        self._lock = threading.Lock() if on_device else nullcontext()

    def check(self, features: dict) -> None:
        """See `Path`."""
        self._generator.check(features)

    def search(
        self, features: Sequence[dict], targetings: Sequence[CompiledTargeting], trace: bool
    ) -> Searched:
        """See `Path`; beams always tell what entered each step."""
        done = Searched()
        with done.stage("prefill"), torch.inference_mode():
            prefill = self._generator.start(features)
        done.unknown_items = prefill.unknown_items
        with self._lock:
            with done.stage("match"):
                done.verdict = self._match(targetings)
            with done.stage("decode"):
                trie = self._index.trie if self._on_device is None else self._on_device.trie
                done.beams = beam_search(
                    self._generator, prefill, trie, done.verdict, self._plan, len(features),
                    self._inside,
                )  # fmt: skip
        return done

    def _match(self, targetings: Sequence[CompiledTargeting]) -> Verdict | None:
        if self._on_device is None:
            return self._index.match(self._matching, targetings, self._plan.widths)
        matcher = self._on_device.matcher
        verdict = matcher.start(targetings)
        if matcher.ready is not None:
            torch.cuda.current_stream(self._on_device.device).wait_event(matcher.ready)
        return verdict


class StepPath:
    """Grace's encoder-decoder inside the trie: steps over static memory, a graph on a GPU.

    Args:
        model: a copy.
        index: a version that the model fits.
        device: the model's, where everything but the last filter runs.
        matching: the mode, not `off`.
        plan: no wider than the trie.
        max_batch: the most requests of a batch.
        table_bytes: the most memory of prefix tables.
    """

    def __init__(
        self,
        model: OwnModel,
        index: Index,
        device: str,
        matching: str,
        plan: BeamPlan,
        max_batch: int,
        table_bytes: int,
    ):
        self._model, self._lock = model, threading.Lock()
        if torch.device(device).type == "cpu":
            trie, self._matcher = index.trie, HostMatcher(index, matching, plan.widths)
        else:
            on_device = DeviceIndex(index, device, matching)
            trie, self._matcher = on_device.trie, on_device.matcher
        self._search = StepSearch(
            model.steps, trie, self._matcher, plan, max_batch, model.num_context,
            table_bytes=table_bytes,
        )  # fmt: skip

    def check(self, features: dict) -> None:
        """See `Path`."""
        self._model.check(features)

    def search(
        self, features: Sequence[dict], targetings: Sequence[CompiledTargeting], trace: bool
    ) -> Searched:
        """See `Path`."""
        done = Searched()
        with self._lock, torch.inference_mode():
            # First the matcher: on a GPU it works beside the encoder.
            with done.stage("match"):
                done.verdict = self._matcher.start(targetings)
            with done.stage("prefill"):
                context, unknown_items = self._model.encode(features)
            with done.stage("decode"):
                done.beams = self._search.run(context, trace=trace)
        done.unknown_items = unknown_items
        return done


def choose_path(
    model: Any,
    index: Index,
    device: str,
    precision: str,
    matching: str,
    plan: BeamPlan,
    max_batch: int,
    table_bytes: int | None,
) -> Path:
    """Return the way for a model: graphs need steps over memory that stays in place.

    An `EncoderDecoder` and a `T5` are copied. An `EncoderDecoder` that somebody has changed, in a
    subclass or inside its decoder, is not: it is driven step by step as it stands, since packed
    weights would not know.

    Args:
        model: a checkpoint directory, an `EncoderDecoder`, a `T5`, another tensor-only core with
            `prefill` and `decode`, or an object with `start` and `step`.
        index: a version.
        device: where the model, the matcher and the search run.
        precision: checked; `auto`, or one of `PRECISIONS` for an `EncoderDecoder`.
        matching: the mode.
        plan: widths; no wider than the trie unless the mode is `off`.
        max_batch: the most requests of a batch.
        table_bytes: of such a model's prefix tables; None for `TABLE_BYTES` on a GPU, 0 on a CPU.

    Raises:
        ConfigError: if this model has no such precision.
        ModelError: if the model is damaged or does not fit the index.
        TypeError: if it is no model.
    """
    if isinstance(model, (str, os.PathLike)):
        model = open_model(model)  # on the CPU: what runs is a copy
    if isinstance(model, EncoderDecoder) and _is_unchanged(model):
        if precision == "auto":
            precision = "float32" if torch.device(device).type == "cpu" else "bfloat16"
        own = OwnModel(model, index, device, precision)
        if matching == "off":
            return GeneratorPath(StepGenerator(own, plan), index, device, matching, plan)
        if table_bytes is None:
            table_bytes = TABLE_BYTES if torch.device(device).type == "cuda" else 0
        return StepPath(own, index, device, matching, plan, max_batch, table_bytes)
    if precision not in ("auto", "float32"):
        raise ConfigError(
            "precision must be auto or float32 for a T5, a model of your own, or a changed one, "
            f"got {precision!r}; the others are for Grace's own decoder"
        )
    if isinstance(model, T5):
        model = T5Generator(model)
        model.tokens.check(index)
    if hasattr(model, "prefill") and hasattr(model, "decode"):
        generator = CoreGenerator(model, index, device)
    elif hasattr(model, "start") and hasattr(model, "step"):
        generator = ProtocolGenerator(model, index.vocab_size, device)
    else:
        raise TypeError(
            "model must be a checkpoint directory, or have start and step (see "
            f"docs/generators.md), got {type(model).__name__}"
        )
    return GeneratorPath(generator, index, device, matching, plan)


def check_precision(precision: object) -> None:
    """Refuse what is no precision.

    Raises:
        ConfigError: naming those there are.
    """
    if not isinstance(precision, str) or precision not in ("auto", *PRECISIONS):
        raise ConfigError(
            f"precision must be one of auto, {', '.join(PRECISIONS)}, got {precision!r}"
        )


def _is_unchanged(model: EncoderDecoder) -> bool:
    """Whether a model computes what `EncoderDecoder` computes, through `Decoder`."""
    methods = ("prefill", "decode")
    same = all(
        getattr(getattr(model, name), "__func__", None) is getattr(EncoderDecoder, name)
        for name in methods
    )
    return same and can_be_packed(model.decoder)
