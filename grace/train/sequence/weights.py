"""All weights of a model in one tensor, and the optimisers that move them.

One tensor makes what is done to every weight one operation: clipping, AdamW, decay, the moving
average, and the sum of gradients over processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from grace.errors import TrainError
from grace.train.sequence.config import SequenceConfig
from grace.train.sequence.muon import Muon

BETAS = (0.9, 0.98)
ALIGNMENT = 64
"""Elements; every weight begins at a multiple of it, as kernels like it."""
OUTPUT_WEIGHTS = ("lm_head.weight", "heads.")
"""Names of the layers that give logits: not hidden matrices, so not Muon's."""


class Weights:
    """A model's weights, gradients and optimiser state.

    The model's parameters become views of `values`, their gradients views of `gradients`.

    Both optimisers change a weight by the learning rate times something that does not depend on it.
    So they run with the peak rate, which a captured graph can hold, and their change is scaled to
    the step's share of it.

    Args:
        model: on its device; must not be moved afterwards.
        config: the settings.

    Attributes:
        values: float32 `[P]`, hidden matrices first, zeros between weights. Muon's matrices of one
            shape stand side by side.
        gradients: float32 `[P]`.
        average: float32 `[P]`, the moving average of `values`.
        num_matrices: how much of `values` belongs to hidden matrices, which alone decay.
    """

    def __init__(self, model: nn.Module, config: SequenceConfig):
        self._config = config
        matrices, others = _sorted_parameters(model)
        if config.optimiser == "muon":
            matrices.sort(key=lambda matrix: matrix.shape)
        parameters = matrices + others
        sizes = [-(-p.numel() // ALIGNMENT) * ALIGNMENT for p in parameters]
        self.num_matrices = sum(sizes[: len(matrices)])
        device = parameters[0].device
        self.values = torch.zeros(sum(sizes), device=device)
        self.gradients = torch.zeros_like(self.values)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._places: dict[str, tuple[int, torch.Size]] = {}
        first = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            self._places[names[id(parameter)]] = first, parameter.shape
            for flat, name in ((self.values, "data"), (self.gradients, "grad")):
                view = flat[first : first + parameter.numel()].view_as(parameter)
                if name == "data":
                    view.copy_(parameter.data)
                setattr(parameter, name, view)
            first += size
        self._leaf = self.values.detach().requires_grad_()
        self._leaf.grad = self.gradients
        self.average = self.values.clone()
        self._before = torch.zeros_like(self.values)
        self._optimisers = self._make_optimisers(len(matrices))

    def _make_optimisers(self, num_hidden: int) -> list[torch.optim.Optimizer]:
        config, on_gpu = self._config, self.values.is_cuda
        first = self.num_matrices if config.optimiser == "muon" else 0
        made: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                [self._part(slice(first, None))], lr=config.learning_rate, betas=BETAS,
                weight_decay=0.0, fused=True, capturable=on_gpu,
            )
        ]  # fmt: skip
        if first:
            places = list(self._places.values())[:num_hidden]
            made.append(Muon(self._part(slice(first)), places, config.muon_learning_rate))
        return made

    def _part(self, part: slice) -> nn.Parameter:
        """Return a part of `values`, with its gradient."""
        made = nn.Parameter(self.values[part])
        made.grad = self.gradients[part]
        return made

    def cast(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return a copy of every parameter by name, in one operation.

        What comes back to the copies is added to `gradients` in one operation, too.
        """
        shapes = tuple(self._places.values())
        return dict(zip(self._places, _Cast.apply(self._leaf, shapes, dtype), strict=True))

    def prime(self) -> None:
        """Make the optimisers' state, which they otherwise make at their first step."""
        self.gradients.zero_()
        for optimiser in self._optimisers:
            optimiser.step()  # of zero gradients: nothing moves
        for state in self._adam.state.values():
            state["step"].zero_()

    @property
    def _adam(self) -> torch.optim.Optimizer:
        return self._optimisers[0]

    def step(self, rate_share: Tensor, average_share: Tensor) -> Tensor:
        """Clip the gradients and move the weights.

        Args:
            rate_share: the learning rates of this step as a share of their peaks, a scalar.
            average_share: how much of the new weights the average takes in, a scalar.

        Returns:
            The norm of the gradients before clipping.
        """
        config = self._config
        norm = torch.linalg.vector_norm(self.gradients)
        self.gradients.mul_((config.max_gradient_norm / (norm + 1e-12)).clamp_max(1))
        self._before.copy_(self.values)
        if config.weight_decay:
            # Where no gradient came, nothing pulls against the decay: such weights keep still.
            held, grown = self.values[: self.num_matrices], self.gradients[: self.num_matrices]
            rate = self._matrix_rate * config.weight_decay
            held.sub_(held * (grown != 0), alpha=rate)
        for optimiser in self._optimisers:
            optimiser.step()
        torch.lerp(self._before, self.values, rate_share, out=self.values)
        self.average.lerp_(self.values, average_share)
        return norm

    @property
    def _matrix_rate(self) -> float:
        muon = self._config.optimiser == "muon"
        return self._config.muon_learning_rate if muon else self._config.learning_rate

    def tensors(self) -> list[Tensor]:
        """Return every tensor that a step changes and a later one reads."""
        states = [state for one in self._optimisers for state in one.state.values()]
        return [self.values, self.average, *(x for state in states for x in state.values())]

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the average in place of the weights while the block runs."""
        self._before.copy_(self.values)
        self.values.copy_(self.average)
        try:
            yield
        finally:
            self.values.copy_(self._before)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors from which a run goes on."""
        return {
            "places": {name: [first, *shape] for name, (first, shape) in self._places.items()},
            "values": self.values,
            "average": self.average,
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over another run's state, in place.

        Raises:
            TrainError: if that holds other tensors, or weights at other places, as a run of another
                version of this program may.
        """
        saved, own = _layout(state), _layout(self.state_dict())
        for name in saved | own:
            if saved.get(name) != own.get(name):
                raise TrainError(
                    f"the run to resume is of another version of this program: the {name} was "
                    f"{saved.get(name)}, now it is {own.get(name)}; start a new run in another "
                    "folder"
                )
        self.values.copy_(state["values"])
        self.average.copy_(state["average"])
        for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


def _layout(state: dict[str, Any]) -> dict[str, list[int]]:
    """Return how a state is laid out, name to numbers; earlier versions did not keep places."""
    layout = {f"place of {name}": place for name, place in state.get("places", {}).items()}
    for number, optimiser in enumerate(state["optimisers"]):
        for key, held in optimiser["state"].items():
            layout |= {
                f"shape of optimiser {number}'s {name} {key}": list(tensor.shape)
                for name, tensor in held.items()
            }
    return layout


class _Cast(torch.autograd.Function):
    """Copies of the parts of one tensor."""

    @staticmethod
    def forward(ctx, values, places, dtype):
        ctx.places, ctx.total, ctx.device = places, len(values), values.device
        ctx.set_materialize_grads(False)
        return tuple(_parts(values.to(dtype, copy=True), places))

    @staticmethod
    def backward(ctx, *gradients):
        flat = torch.zeros(ctx.total, device=ctx.device)
        pairs = [
            (part, gradient)
            for part, gradient in zip(_parts(flat, ctx.places), gradients, strict=True)
            if gradient is not None
        ]
        torch._foreach_copy_([part for part, _ in pairs], [gradient for _, gradient in pairs])
        return flat, None, None


def _parts(flat: Tensor, places: Iterable[tuple[int, torch.Size]]) -> list[Tensor]:
    return [flat[first : first + shape.numel()].view(shape) for first, shape in places]


def _sorted_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the weights of hidden linear layers, and all others; tied ones once."""
    embedded = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    hidden = {
        id(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not any(part in f"{name}.weight" for part in OUTPUT_WEIGHTS)
    }
    matrices, others = [], []
    for parameter in model.parameters():
        is_matrix = id(parameter) in hidden and id(parameter) not in embedded
        (matrices if is_matrix else others).append(parameter)
    return matrices, others
