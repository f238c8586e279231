"""Hiding values while training, so that the rows of unknown and missing values are trained too."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.model.features import FeatureSpec
from grace.model.fields import (
    FIRST_VALUE,
    MISSING,
    PADDING,
    UNKNOWN,
    BagField,
    CategoricalField,
    NumericField,
)


def hide_(
    inputs: dict[str, Tensor], spec: FeatureSpec, share: float, generator: torch.Generator
) -> None:
    """Hide a share of the values of a batch, in place: half as unknown, half as missing.

    Numbers and time gaps cannot be unknown: half the share of them goes missing. A bag loses single
    values to unknown, and goes missing as a whole.

    Args:
        inputs: of `FeatureTable.batch`.
        spec: what they are.
        share: of values.
        generator: of the choice.
    """

    def choose(shape: torch.Size) -> Tensor:
        return torch.rand(shape, generator=generator) < share / 2

    def hide_rows_(rows: Tensor, row: int) -> None:
        rows[choose(rows.shape) & (rows >= FIRST_VALUE)] = row

    for field in spec.fields:
        if isinstance(field, NumericField):
            inputs[field.name][choose(inputs[field.name].shape)] = torch.nan
        elif isinstance(field, CategoricalField):
            hide_rows_(inputs[field.name], UNKNOWN)
            hide_rows_(inputs[field.name], MISSING)
        elif isinstance(field, BagField):
            hide_rows_(inputs[field.name], UNKNOWN)
            whole = choose(inputs[field.name].shape[:1])
            inputs[field.name][whole] = PADDING
            inputs[field.name][whole, 0] = MISSING
        else:
            hide_rows_(inputs[f"{field.name}.actions"], UNKNOWN)
            hide_rows_(inputs[f"{field.name}.actions"], MISSING)
            hide_rows_(inputs[f"{field.name}.gaps"], MISSING)
