"""The two ways a batch may go from features and targeting to beams."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from grace import _native
from grace.decode import (
    BeamPlan,
    Beams,
    CoreGenerator,
    Generator,
    ProtocolGenerator,
    StepSearch,
    beam_search,
)
from grace.decode.beams import BeamCopies
from grace.decode.step_search import fitting_buckets
from grace.errors import ConfigError
from grace.index import Index
from grace.index.host_matcher import HostMatcher
from grace.index.on_device import DeviceIndex
from grace.index.rules import CompiledTargeting
from grace.index.verdict import Verdict
from grace.model import EncoderDecoder
from grace.model.feature_reader import FeatureRow
from grace.model.folder import open_model
from grace.model.step_decoder import PRECISIONS
from grace.model.step_layer import can_be_packed
from grace.model.t5 import T5
from grace.model.t5.generator import T5Generator
from grace.retrieve.own_model import FixedInputs, OwnModel, StepGenerator
from grace.retrieve.searching import Inputs, Path, Searching, StageTimes

_log = logging.getLogger(__name__)
TABLE_BYTES = 2**31
"""Of prefix tables on a GPU: the paper's first three levels, 1.5 % of an H200's memory."""


class GeneratorPath:
    """Any generator, step by step from Python; selection where the trie is.

    Args:
        generator: the model.
        index: a version.
        device: where the generator runs, and selection in a trie.
        matching: the mode.
        plan: widths.
    """

    inputs_device = "cpu"

    def __init__(
        self, generator: Generator, index: Index, device: str, matching: str, plan: BeamPlan
    ):
        self._generator, self._index, self._plan = generator, index, plan
        self._inside, self._matching = matching != "off", matching
        on_device = torch.device(device).type == "cuda" and self._inside
        self._on_device = DeviceIndex(index, device, matching) if on_device else None
        # What a device's matcher says holds until its next batch, so one batch at a time.
        self._lock = threading.Lock() if on_device else nullcontext()

    def read_plain(self, features: Sequence[object]) -> list[None]:
        """See `Path`; nothing is plain to somebody else's model."""
        return [None] * len(features)

    def read_texts(self, texts: _native.RequestTexts) -> list[None]:
        """See `Path`."""
        return [None] * len(texts)

    def read(self, features: dict) -> dict:
        """See `Path`; the generator reads them as they are."""
        self._generator.check(features)
        return features

    def inputs(self, features: Sequence[dict]) -> Inputs:
        """See `Path`."""
        return Inputs({}, np.zeros(len(features), np.int64))

    def launch(
        self,
        features: Sequence[dict],
        inputs: Inputs,
        targetings: Sequence[CompiledTargeting],
        trace: bool,
    ) -> Searching:
        """See `Path`; the search is over when this returns, and beams tell what entered a step."""
        stages = StageTimes()
        with stages.stage("prefill"), torch.inference_mode():
            prefill = self._generator.start(features)
        with self._lock:
            with stages.stage("match"):
                verdict = self._match(targetings)
            with stages.stage("decode"):
                trie = self._index.trie if self._on_device is None else self._on_device.trie
                beams = beam_search(
                    self._generator, prefill, trie, verdict, self._plan, len(features),
                    self._inside,
                )  # fmt: skip
        unknown_items = np.array(prefill.unknown_items, np.int64)
        return Searching(lambda: beams, None, verdict, unknown_items, stages)

    def warm(self) -> None:
        """See `Path`; a model of somebody else's is left alone."""
        with self._lock:
            self._match([self._index.compile(None)])

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
        self._model, self._index, self._lock = model, index, threading.Lock()
        self.inputs_device = device
        if torch.device(device).type == "cuda":
            on_device = DeviceIndex(index, device, matching)
            trie, self._matcher = on_device.trie, on_device.matcher
        else:
            trie, self._matcher = index.trie, HostMatcher(index, matching, plan.widths)
        # On a GPU the encoder's launches, hundreds of small ones, cost more than what they compute.
        in_graph = torch.device(device).type == "cuda" and model.has_own_encoder
        source = FixedInputs(model, fitting_buckets(max_batch)[-1]) if in_graph else None
        search_of = partial(
            StepSearch, model.steps, trie, self._matcher, plan, max_batch, model.num_context,
            table_bytes=table_bytes,
        )  # fmt: skip
        try:
            self._search = search_of(source=source)
        except RuntimeError as error:
            if source is None:
                raise
            _log.warning("the encoder cannot be captured, so its launches go one by one: %s", error)
            self._search, source = search_of(), None
        self._in_graph = source is not None
        self._copies: deque[BeamCopies] = deque()  # those that no batch lands in

    def read_plain(self, features: Sequence[object]) -> list[FeatureRow | None]:
        """See `Path`."""
        return self._model.features.read_plain(features)

    def read_texts(self, texts: _native.RequestTexts) -> list[FeatureRow | None]:
        """See `Path`."""
        return self._model.features.read_texts(texts)

    def read(self, features: dict) -> FeatureRow:
        """See `Path`."""
        return self._model.features.read(features)

    def inputs(self, features: Sequence[FeatureRow]) -> Inputs:
        """See `Path`."""
        block = self._model.features.gather(features)
        return Inputs(block.tensors, block.unknown_items)

    def launch(
        self,
        features: Sequence[FeatureRow],
        inputs: Inputs,
        targetings: Sequence[CompiledTargeting],
        trace: bool,
    ) -> Searching:
        """See `Path`; all of it goes to the search's stream, behind the batches before."""
        stages = StageTimes()
        with self._lock, torch.inference_mode(), self._search.on_stream():
            # First the matcher: on a GPU it works beside the encoder.
            with stages.stage("match"):
                verdict = self._matcher.start(targetings)
            copies = self._copies.pop() if self._copies else self._search.new_copies()
            if self._in_graph:
                with stages.stage("decode"):  # and what comes before it: one graph, one launch
                    launched = self._search.launch_inputs(
                        inputs.tensors, len(features), trace, copies
                    )
            else:
                with stages.stage("prefill"):
                    context = self._model.encode(inputs.tensors)
                with stages.stage("decode"):
                    launched = self._search.launch(context, trace=trace, copies=copies)

        def wait() -> Beams:
            with stages.stage("decode"):
                beams = launched.wait()
            self._copies.append(copies)
            return beams

        return Searching(wait, launched.done, verdict, inputs.unknown_items, stages)

    def warm(self) -> None:
        """See `Path`: one batch of a request that says nothing of itself."""
        features = [self.read({})]
        targetings = [self._index.compile(None)]
        self.launch(features, self.inputs(features), targetings, False).wait()


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
    if matching == "off" or not _is_own(model):
        generator = make_generator(model, index, device, precision, plan)
        return GeneratorPath(generator, index, device, matching, plan)
    own = _own_model(model, index, device, precision)
    if table_bytes is None:
        table_bytes = TABLE_BYTES if torch.device(device).type == "cuda" else 0
    return StepPath(own, index, device, matching, plan, max_batch, table_bytes)


def make_generator(
    model: Any, index: Index, device: str, precision: str, plan: BeamPlan
) -> Generator:
    """Return any model as a generator, to be driven step by step.

    Args:
        model: loaded, otherwise as `choose_path` takes it.
        index: a version.
        device: where the model runs.
        precision: as `choose_path` takes it.
        plan: at least as wide as any search.

    Raises:
        ConfigError, ModelError, TypeError: as `choose_path`.
    """
    if _is_own(model):
        return StepGenerator(_own_model(model, index, device, precision), plan)
    if precision not in ("auto", "float32"):
        raise ConfigError(
            "precision must be auto or float32 for a T5, a model of your own, or a changed one, "
            f"got {precision!r}; the others are for Grace's own decoder"
        )
    if isinstance(model, T5):
        model = T5Generator(model)
        model.tokens.check(index)
    if hasattr(model, "prefill") and hasattr(model, "decode"):
        return CoreGenerator(model, index, device)
    if hasattr(model, "start") and hasattr(model, "step"):
        return ProtocolGenerator(model, index.vocab_size, device)
    raise TypeError(
        "model must be a checkpoint directory, or have start and step (see "
        f"docs/generators.md), got {type(model).__name__}"
    )


def check_precision(precision: object) -> None:
    """Refuse what is no precision.

    Raises:
        ConfigError: naming those there are.
    """
    if not isinstance(precision, str) or precision not in ("auto", *PRECISIONS):
        raise ConfigError(
            f"precision must be one of auto, {', '.join(PRECISIONS)}, got {precision!r}"
        )


def _own_model(model: EncoderDecoder, index: Index, device: str, precision: str) -> OwnModel:
    if precision == "auto":
        precision = "float32" if torch.device(device).type == "cpu" else "bfloat16"
    return OwnModel(model, index, device, precision)


def _is_own(model: Any) -> bool:
    """Whether a model computes what `EncoderDecoder` computes, through `Decoder`."""
    if not isinstance(model, EncoderDecoder):
        return False
    methods = ("prefill", "decode")
    same = all(
        getattr(getattr(model, name), "__func__", None) is getattr(EncoderDecoder, name)
        for name in methods
    )
    return same and can_be_packed(model.decoder)
