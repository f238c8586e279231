"""Grace's encoder-decoder as retrieval runs it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from grace.decode import BeamPlan, check_sids
from grace.decode.generator import Prefill, moved
from grace.errors import ConfigError
from grace.index import Index
from grace.kernels.logsumexp import logsumexp
from grace.model import EncoderDecoder
from grace.model.feature_reader import FeatureReader
from grace.model.step_decoder import StepDecoder
from grace.model.step_memory import StepState


class OwnModel:
    """A copy of Grace's encoder-decoder as retrieval runs it: contexts of features, then steps.

    Args:
        model: the trained module. It is copied, encoder and decoder at the same moment, and stays
            as and where it is: what becomes of it later changes no answer.
        index: a version that the model fits.
        device: where it runs.
        precision: of the decoder, as `StepDecoder` takes it. Where that is not float32, a GPU's
            products in the encoder are bfloat16's, too: the decoder would round contexts anyway.

    Raises:
        ConfigError: if the device is neither a CPU nor a CUDA device, or has too little memory.
        ModelError: if the model does not fit the index.

    Attributes:
        features: reads what the encoder wants of requests.
        steps: the decoder.
        num_context: T.
        device: where it runs.
        has_own_encoder: whether the encoder is as Grace made it. One that somebody has changed, by
            a hook or a module of their own, may do what no graph repeats.
    """

    def __init__(self, model: EncoderDecoder, index: Index, device: str, precision: str):
        check_sids(model.config, index)
        self.device, self.features = device, FeatureReader(model.features, index)
        if torch.device(device).type not in ("cpu", "cuda"):
            raise ConfigError(f"device must be cpu or cuda for Grace's own model, got {device!r}")
        try:
            self._encoder = copy.deepcopy(model.encoder).eval().to(device, torch.float32)
            self.steps = StepDecoder(model.decoder, model.config, device, precision)
        except torch.OutOfMemoryError:
            free, _ = torch.cuda.mem_get_info(device)
            raise ConfigError(
                f"device: the model's weights do not fit on {device}, {free / 1e9:.2f} GB are "
                "free; end what else uses its memory, or use device 'cpu'"
            ) from None
        on_gpu = torch.device(device).type == "cuda"
        self._in_half = on_gpu and precision != "float32"
        self.num_context = model.config.num_context_tokens
        self.has_own_encoder = all(
            type(module).__module__.startswith(("grace.model.", "torch.nn."))
            and not (module._forward_hooks or module._forward_pre_hooks)
            for module in model.encoder.modules()
        )

    def encode(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return contexts, float32 `[B, T, model_dim]`.

        Args:
            inputs: tensors of a `FeatureBlock`, on any device.
        """
        there = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self._in_half):
            return self._encoder(there).float()


class FixedInputs:
    """A model's inputs in memory that stays in place: a `ContextSource` for whole graphs.

    Args:
        model: whose they are.
        capacity: the most requests of a batch.
    """

    def __init__(self, model: OwnModel, capacity: int):
        self._model = model
        self._tensors = {
            name: torch.zeros(capacity, *tensor.shape[1:], dtype=tensor.dtype, device=model.device)
            for name, tensor in model.features.gather([]).tensors.items()
        }

    def place(self, inputs: dict[str, Tensor], batch: int) -> None:
        """See `ContextSource`; `inputs` are tensors of a `FeatureBlock`, on any device."""
        for name, tensor in self._tensors.items():
            tensor[:batch].copy_(inputs[name], non_blocking=True)

    def context(self, batch: int) -> Tensor:
        """See `ContextSource`."""
        return self._model.encode({name: tensor[:batch] for name, tensor in self._tensors.items()})


class StepGenerator:
    """Grace's encoder-decoder as a `Generator`: the same steps, called one by one.

    Args:
        model: whose steps they are.
        plan: at least as wide as any search.
    """

    def __init__(self, model: OwnModel, plan: BeamPlan):
        self._model, self._plan = model, plan

    def check(self, features: dict) -> None:
        """See `Generator`."""
        self._model.features.read(features)

    def start(self, features: Sequence[dict]) -> Prefill:
        """See `Generator`; each batch has memory of its own."""
        reader = self._model.features
        block = reader.gather([reader.read(row) for row in features])
        context = self._model.encode(block.tensors)
        steps = self._model.steps
        memory = steps.memory(len(features), self._plan.widths, self._model.num_context)
        steps.load(memory, context)
        return Prefill(steps.start(memory), block.unknown_items.tolist())

    def step(
        self, state: StepState, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """See `Generator`."""
        steps = self._model.steps
        rows = (moved(parents, steps.device), moved(tokens, steps.device))
        columns = steps.step(state, *rows, t).float()
        return columns, logsumexp(columns)
