"""A stand-in for a trained model: seeded logits that depend on the request and the prefix.

A trained model has learnt two things, and so has this one: how ads are spread over SIDs, and that
people who are alike like the same branches. The logit of token v after prefix p for user u is

    log((1 - LEAK) * share(p, v) + LEAK / V) + STRENGTH * <u, code(t, bucket(p), v)>

`share(p, v)` is the share of p's ads that lie under p followed by v, LEAK what a model wastes on
tokens that the catalogue lacks. `u` is a unit vector made of the request's country, age band,
gender and interest, so users who share these are near each other; `code` is a seeded normal vector,
half of which all prefixes share and half of which belongs to one of 64 buckets of prefixes. It
knows nothing of targeting: what a mode gains here is the matcher's work alone.

Logits are gathers and one float32 sum of numbers made on the CPU, so a request and a prefix have
the same ones on every device and in every mode.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace.decode.generator import Prefill, check_vocabulary
from grace.index.trie import Trie
from grace.kernels.logsumexp import logsumexp

STRENGTH = 1.5
LEAK = 0.05
BUCKETS = 64
DIMENSIONS = 16
# How much each attribute moves a user; what no request shares (`id`) moves it least.
WEIGHTS = {"country": 1.0, "age": 0.7, "gender": 0.5, "interest": 1.0, "id": 0.5}
AGE_BAND = 10


@dataclass
class _State:
    """Of one batch: what the next step starts from.

    Attributes:
        taste: by step float32 [B, BUCKETS, V].
        nodes: int64 [B, M], trie nodes of the beams; -1 for a dead one.
        hashes: int64 [B, M], of their prefixes.
    """

    taste: list[Tensor]
    nodes: Tensor
    hashes: Tensor


class SeededModel:
    """Drives `grace.decode.beam_search`; `start` takes requests instead of features.

    Args:
        trie: the catalogue's.
        sid_ad_offsets: int32 or int64 [N + 1].
        vocab_size: V.
        device: where logits are computed.
        seed: of the codes and of what attributes mean.
    """

    def __init__(
        self,
        trie: Trie,
        sid_ad_offsets: Tensor,
        vocab_size: int = 512,
        device: str = "cpu",
        seed: int = 0,
    ):
        check_vocabulary(vocab_size, trie.vocab_size)
        self._vocab_size, self._device, self._seed = vocab_size, torch.device(device), seed
        self._num_levels = trie.num_levels
        self._offsets = trie.child_offsets.to(self._device)
        self._tokens = trie.child_tokens.to(self._device)
        prior = np.log((1 - LEAK) * ad_shares(trie, sid_ad_offsets) + LEAK / vocab_size)
        self._prior = torch.from_numpy(prior.astype(np.float32)).to(self._device)
        self._floor = float(np.float32(np.log(LEAK / vocab_size)))
        self._codes = [self._code_vectors(t) for t in range(self._num_levels)]

    def _code_vectors(self, t: int) -> np.ndarray:
        generator = np.random.default_rng([self._seed, t])
        shared = generator.standard_normal((1, self._vocab_size, DIMENSIONS))
        own = generator.standard_normal((BUCKETS, self._vocab_size, DIMENSIONS))
        return STRENGTH * (shared + own) / np.sqrt(2)

    def check(self, features: dict) -> None:
        """Every request is fine."""

    def start(self, requests: Sequence[dict]) -> Prefill:
        """Read the attributes of B requests, `{"id", "attributes"}`."""
        users = np.stack([self._user(request) for request in requests])
        taste = [
            torch.from_numpy(np.einsum("bd,cvd->bcv", users, codes).astype(np.float32))
            for codes in self._codes
        ]
        root = torch.zeros(len(requests), 1, dtype=torch.int64, device=self._device)
        state = _State([table.to(self._device) for table in taste], root, root)
        return Prefill(state, [0] * len(requests))

    def _user(self, request: dict) -> np.ndarray:
        attributes = request["attributes"]
        parts = {name: attributes.get(name) for name in WEIGHTS} | {"id": request["id"]}
        if parts["age"] is not None:
            parts["age"] //= AGE_BAND
        vector = np.zeros(DIMENSIONS)
        for name, value in parts.items():
            key = zlib.crc32(f"{name}={value}".encode())
            direction = np.random.default_rng([self._seed, key]).standard_normal(DIMENSIONS)
            vector += WEIGHTS[name] * direction
        return vector / np.linalg.norm(vector)

    def step(
        self, state: _State, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return float32 [B, M, V] logits and their float64 [B, M] normaliser."""
        if parents is not None:
            parents, tokens = parents.to(self._device), tokens.to(self._device)
            state.nodes = self._follow(state.nodes.gather(1, parents), tokens)
            state.hashes = (state.hashes.gather(1, parents) * 1_000_003 + tokens + 1) % (1 << 40)
        batch, beams = state.nodes.shape
        logits = torch.full(
            (batch * beams, self._vocab_size), self._floor, dtype=torch.float32,
            device=self._device,
        )  # fmt: skip
        rows, entries = entries_of(self._offsets, state.nodes.reshape(-1))
        logits[rows, self._tokens[entries].long()] = self._prior[entries]
        bucket = (state.hashes >> 4) % BUCKETS
        request = torch.arange(batch, device=self._device)[:, None]
        logits = logits.view(batch, beams, -1).add_(state.taste[t][request, bucket])
        return logits, logsumexp(logits)

    def _follow(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """Return int64 [B, M], each node's child along a token, -1 where there is none."""
        start = nodes.clamp_min(0)
        low, high = self._offsets[start].long(), self._offsets[start + 1].long()
        last, end = high, len(self._tokens) - 1
        for _ in range(self._vocab_size.bit_length()):
            middle = (low + high) // 2
            less = (low < high) & (self._tokens[middle.clamp_max(end)] < tokens)
            low, high = torch.where(less, middle + 1, low), torch.where(less, high, middle)
        found = (nodes >= 0) & (low < last) & (self._tokens[low.clamp_max(end)] == tokens)
        return torch.where(found, low + 1, -1)


def entries_of(child_offsets: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return int64 [n] twice, the child entries of nodes, int64 [m], and the row each came from.

    A node of -1 has none.
    """
    start = nodes.clamp_min(0)
    first = child_offsets[start].long()
    counts = torch.where(nodes < 0, 0, child_offsets[start + 1].long() - first)
    rows = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), counts)
    before = counts.cumsum(0) - counts
    entries = torch.arange(len(rows), device=nodes.device) + (first - before)[rows]
    return rows, entries


def ad_shares(trie: Trie, sid_ad_offsets: Tensor) -> np.ndarray:
    """Return float64 [S - 1], by child entry the share of its parent's ads."""
    bounds = sid_ad_offsets.numpy().astype(np.int64)  # of the ads under each node of a level
    levels, offsets = trie.level_offsets.tolist(), trie.child_offsets.numpy()
    shares = np.empty(trie.num_nodes - 1)
    for level in range(trie.num_levels - 1, -1, -1):
        first, last = levels[level], levels[level + 1]
        children = offsets[first : last + 1].astype(np.int64) - offsets[first]
        above = bounds[children]
        counts = np.repeat(np.diff(above), np.diff(children))
        shares[last - 1 : levels[level + 2] - 1] = np.diff(bounds) / counts
        bounds = above
    return shares
