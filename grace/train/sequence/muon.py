"""Muon over all matrices at once: a few products of batches, not thousands of small kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

# As in torch.optim.Muon.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    """The update of torch.optim.Muon with `adjust_lr_fn="match_rms_adamw"`, without decay.

    Matrices of one shape, and those of its transpose, are one batch. A step has static shapes and
    changes its state in place, so that a graph can hold it.

    Args:
        flat: float32 `[P]`, holds the matrices; has its gradient and keeps it.
        places: where each matrix begins in `flat`, and its shape. Neighbours of one shape must
            begin equally far apart; they are read and moved together.
        learning_rate: on AdamW's scale.
    """

    def __init__(
        self, flat: nn.Parameter, places: Sequence[tuple[int, torch.Size]], learning_rate: float
    ):
        super().__init__([flat], {"lr": learning_rate})
        self.state[flat]["momentum"] = torch.zeros_like(flat, requires_grad=False)
        self._update = torch.zeros_like(flat, dtype=torch.bfloat16, requires_grad=False)
        self._batches = list(
            zip(_batches(flat.detach(), places), _batches(self._update, places), strict=True)
        )

    @torch.no_grad()
    def step(self) -> None:
        """Move the matrices."""
        (group,) = self.param_groups
        (flat,) = group["params"]
        momentum = self.state[flat]["momentum"]
        momentum.lerp_(flat.grad, 1 - MOMENTUM)
        self._update.copy_(flat.grad.lerp(momentum, MOMENTUM))
        for matrices, updates in self._batches:
            directions = _orthogonalised(torch.cat(updates))
            rate = group["lr"] * 0.2 * math.sqrt(directions.shape[2])
            parts = directions.split([len(stack) for stack in matrices])
            for stack, part in zip(matrices, parts, strict=True):
                stack.add_(part, alpha=-rate)


def _batches(flat: Tensor, places: Sequence[tuple[int, torch.Size]]) -> list[list[Tensor]]:
    """Return views `[n, short side, long side]` of all matrices, a list for each pair of sides."""
    batches: dict[torch.Size, list[Tensor]] = {}
    for shape, neighbours in itertools.groupby(places, key=lambda place: place[1]):
        firsts = [first for first, _ in neighbours]
        gaps = {after - before for before, after in itertools.pairwise(firsts)} or {0}
        assert len(gaps) == 1, f"matrices of shape {tuple(shape)} begin unequally far apart"
        rows, columns = shape
        stack = flat[firsts[0] :].as_strided((len(firsts), rows, columns), (*gaps, columns, 1))
        stack = stack.mT if rows > columns else stack
        batches.setdefault(stack.shape[1:], []).append(stack)
    return list(batches.values())


def _orthogonalised(matrices: Tensor) -> Tensor:
    """Bring the singular values of each matrix near 1, by Newton-Schulz iterations.

    Args:
        matrices: bfloat16 `[n, short side, long side]`.

    Returns:
        The same shape; a matrix of zeros stays one.
    """
    a, b, c = COEFFICIENTS
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    matrices = matrices / norms.clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = torch.bmm(matrices, matrices.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        matrices = torch.baddbmm(matrices, polynomial, matrices, beta=a)
    return matrices
