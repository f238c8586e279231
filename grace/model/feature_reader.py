"""Features of requests, read straight into a model's inputs: natively where they are plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace import _native
from grace.index import Index
from grace.model.features import FeatureSpec
from grace.model.fields import BagField, CategoricalField, Field, NumericField


@dataclass(frozen=True, eq=False)
class FeatureBlock:
    """The features of n requests.

    Attributes:
        tensors: as `FeatureTable.batch` makes them.
        unknown_items: int64 `[n]`, events skipped: the index does not know their ad.
    """

    tensors: dict[str, Tensor]
    unknown_items: np.ndarray


class FeatureRow(NamedTuple):
    """The features of one request: a row of a block."""

    block: FeatureBlock
    number: int


class FeatureReader:
    """Reads the features of requests.

    Args:
        spec: the declaration, fitted.
        index: resolves the ad ids of sequences to SIDs.
    """

    def __init__(self, spec: FeatureSpec, index: Index):
        self._spec, self._index = spec, index
        # Of every input its name, dtype and shape, as `FeatureTable` has them.
        tensors, _ = spec.encode_parsed([], index)
        self._columns = [
            (name, t.numpy().dtype, t.shape[1:]) for name, t in _in_order(spec, tensors)
        ]
        self._native = _native.FeatureReader(
            [_described(field) for field in spec.fields],
            index.data.ad_ids.finding, index.ad_sid, index.sids,
        )  # fmt: skip

    def read_plain(self, features: Sequence[object]) -> list[FeatureRow | None]:
        """Read the features of requests in one native call.

        Returns:
            A row for each; None for those that `read` has to look at: they are wrong, or not of
            the types that a JSON parser makes, or rare.
        """
        return self._read(self._native.read, list(features))

    def read_texts(self, texts: _native.RequestTexts) -> list[FeatureRow | None]:
        """Do what `read_plain` does for requests as texts, without the interpreter."""
        return self._read(self._native.read_texts, texts)

    def _read(self, read: Callable[..., bytes], requests: Any) -> list[FeatureRow | None]:
        n = len(requests)
        columns = {name: np.empty((n, *shape), dtype) for name, dtype, shape in self._columns}
        unknown_items = np.empty(n, np.int64)
        plain = read(requests, list(columns.values()), unknown_items)
        tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
        block = FeatureBlock(tensors, unknown_items)
        return [FeatureRow(block, i) if plain[i] else None for i in range(n)]

    def read(self, features: Mapping[str, Any]) -> FeatureRow:
        """Read one request's features, whatever they are.

        Raises:
            RequestError: if they cannot be read.
        """
        tensors, unknown_items = self._spec.encode([features], self._index)
        return FeatureRow(FeatureBlock(tensors, np.array(unknown_items, np.int64)), 0)

    def gather(self, rows: Sequence[FeatureRow]) -> FeatureBlock:
        """Put rows of any blocks into one block, in their order."""
        if not rows:
            tensors, _ = self._spec.encode_parsed([], self._index)
            return FeatureBlock(tensors, np.empty(0, np.int64))
        blocks = list(dict.fromkeys(row.block for row in rows))
        firsts = np.cumsum([0] + [len(block.unknown_items) for block in blocks]).tolist()
        first_of = dict(zip(blocks, firsts[:-1], strict=True))
        numbers = [first_of[row.block] + row.number for row in rows]
        if len(blocks) == 1 and numbers == list(range(firsts[-1])):
            return blocks[0]
        tensors = {
            name: torch.cat([block.tensors[name] for block in blocks])[numbers]
            for name in blocks[0].tensors
        }
        unknown_items = np.concatenate([block.unknown_items for block in blocks])[numbers]
        return FeatureBlock(tensors, unknown_items)


def _in_order(spec: FeatureSpec, tensors: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Return the inputs field by field, as native code takes them."""
    parts = ("tokens", "actions", "gaps", "valid")
    return [
        (name, tensors[name])
        for field in spec.fields
        for name in [field.name, *(f"{field.name}.{part}" for part in parts)]
        if name in tensors
    ]


def _described(field: Field) -> tuple:
    """Return a field's name, kind, values, mean, standard deviation and length."""
    if isinstance(field, NumericField):
        return field.name, field.kind, (), float(field.mean), float(field.std), 0
    if isinstance(field, CategoricalField):
        return field.name, field.kind, field.vocabulary.values, 0.0, 1.0, 0
    vocabulary = field.vocabulary if isinstance(field, BagField) else field.actions
    return field.name, field.kind, vocabulary.values, 0.0, 1.0, field.max_length
