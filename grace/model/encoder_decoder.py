"""GRACE's encoder-decoder: the tensor-only core that retrieval drives."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from grace.kernels.logsumexp import logsumexp
from grace.model.beam_cache import BeamCache
from grace.model.config import ModelConfig
from grace.model.decoder import Decoder, KeyValue
from grace.model.encoder import Encoder
from grace.model.features import FeatureSpec


@dataclasses.dataclass(frozen=True)
class DecodeBuffers:
    """What the decode steps of one batch share.

    Attributes:
        context: per decoder layer, cross-attention keys and values `[B, H, T, D]`, one copy a
            request.
        cache: self-attention keys and values of each beam; every step changes it.
    """

    context: list[KeyValue]
    cache: BeamCache


class EncoderDecoder(nn.Module):
    """A user's features in, next-token logits of SID prefixes out.

    A new model's weights are drawn from torch's default generator.

    Attributes:
        config: the sizes.
        features: the fitted declaration of the inputs.
    """

    def __init__(self, config: ModelConfig, features: FeatureSpec):
        super().__init__()
        self.config = config
        self.features = features
        self.encoder = Encoder(config, features)
        self.decoder = Decoder(config)
        self._initialise()

    def _initialise(self) -> None:
        """Draw embeddings, queries and positions; linear layers and norms keep torch's."""
        std = 1 / math.sqrt(self.config.model_dim)
        for module in self.modules():
            if not isinstance(module, nn.Linear | nn.LayerNorm | nn.RMSNorm):
                for parameter in module.parameters(recurse=False):
                    nn.init.normal_(parameter, std=std)

    def forward(self, inputs: dict[str, Tensor], sids: Tensor) -> Tensor:
        """Score SIDs by teacher forcing: each token given the true ones before it.

        Args:
            inputs: the tensors of `FeatureSpec.encode`, B rows.
            sids: `[B, L]` int64, or `[B, M, L]`: several SIDs a request, for one encoding.

        Returns:
            Logits `[B, L, V]`, or `[B, M, L, V]`.
        """
        context = self.decoder.project_context(self.encoder(inputs))
        if sids.dim() == 3:
            return self.decoder(context, sids)
        return self.decoder(context, sids[:, None])[:, 0]

    @torch.no_grad()
    def prefill(self, inputs: dict[str, Tensor], max_beams: int = 1) -> DecodeBuffers:
        """Encode a batch and compute what its beams will share.

        Args:
            inputs: the tensors of `FeatureSpec.encode`, B rows, on the model's device.
            max_beams: beams per request to reserve the cache for. A wider step still works: it
                allocates once more.
        """
        context = self.decoder.project_context(self.encoder(inputs))
        return DecodeBuffers(context, BeamCache(self.config, max_beams, context[0][0]))

    @torch.no_grad()
    def decode(
        self, buffers: DecodeBuffers, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """Score the tokens of level t for every beam.

        Args:
            buffers: of `prefill`; changed in place, so steps come in order, t = 0 first.
            parents: `[B, M]` int64, the row of the step before that each beam continues; None at
                t = 0, where M is 1.
            tokens: `[B, M]` int64, the token of level t - 1 of each beam; None at t = 0.
            t: the level, below L.

        Returns:
            Logits `[B, M, V]` float32, and their log-sum-exp over V `[B, M]` float64: a token's log
            probability is the difference.
        """
        if parents is not None:
            buffers.cache.reorder(parents, length=t)
        logits = self.decoder.step(buffers.context, buffers.cache, tokens, t).float()
        return logits, logsumexp(logits)
