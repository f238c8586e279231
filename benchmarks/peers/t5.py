"""Unmodified `T5ForConditionalGeneration.generate` over a trie, its constraint a dict of prefixes.

The cache is transformers' own, as it comes; a score is the plain sum of log-softmax over all tokens
of the model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig, T5ForConditionalGeneration

import grace
from grace.model.t5 import load_hf

MASKED = -1e8
"""Above what transformers gives beams that it has no candidates for."""


@dataclass(frozen=True)
class Generated:
    """What transformers finds for each request, best first.

    Attributes:
        sids: beams without a candidate included.
        scores: theirs are below `MASKED`.
    """

    sids: list[list[tuple[int, ...]]]
    scores: list[list[float]]

    def found(self, request: int) -> dict[tuple[int, ...], float]:
        """The SIDs of one request that are in the catalogue, with their scores."""
        pairs = zip(self.sids[request], self.scores[request], strict=True)
        return {sid: score for sid, score in pairs if score > MASKED}


class HuggingFaceT5:
    """A T5's folder in transformers.

    Args:
        folder: that says which token is which code.
        index: the catalogue.

    Attributes:
        model: as transformers opens it.
        tokens: which token is which code.
    """

    def __init__(self, folder: str | os.PathLike, index: grace.Index):
        self.model = T5ForConditionalGeneration.from_pretrained(folder).eval()
        own = load_hf(folder)
        self.tokens, self._start = own.tokens, own.config.decoder_start_token_id
        children: dict[tuple[int, ...], set[int]] = {}
        for sid in self.tokens.tokens(torch.from_numpy(index.sids)).tolist():
            for level, token in enumerate(sid):
                children.setdefault(tuple(sid[:level]), set()).add(token)
        # Tensors, which `generate` takes like lists but need not convert.
        self._children = {
            prefix: torch.tensor(sorted(tokens)) for prefix, tokens in children.items()
        }
        self._nothing = torch.tensor([0])  # an empty answer is an error

    def allowed(self, _: int, ids: Tensor) -> Tensor:
        """A `prefix_allowed_tokens_fn`; a beam without candidates may have left the catalogue."""
        return self._children.get(tuple(ids.tolist()[1:]), self._nothing)

    def generate(self, input_ids: Tensor, mask: Tensor, beams: int) -> Generated:
        """Return the best `beams` SIDs of each request.

        Args:
            input_ids: int64 `[B, S]`.
            mask: bool `[B, S]`.
            beams: at least 2, at every step.
        """
        settings = GenerationConfig(
            num_beams=beams, num_return_sequences=beams, do_sample=False,
            max_new_tokens=self.tokens.num_levels, length_penalty=0.0, early_stopping=False,
            decoder_start_token_id=self._start, pad_token_id=0, use_cache=True,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        with torch.inference_mode():
            out = self.model.generate(
                input_ids, attention_mask=mask.long(), generation_config=settings,
                prefix_allowed_tokens_fn=self.allowed,
            )  # fmt: skip
        sids = out.sequences[:, 1:] - torch.tensor(self.tokens.starts)
        shape = (len(input_ids), beams)
        return Generated(
            [[tuple(sid) for sid in row] for row in sids.unflatten(0, shape).tolist()],
            out.sequences_scores.unflatten(0, shape).tolist(),
        )


def assert_alike(
    mine: dict[tuple[int, ...], float], theirs: dict[tuple[int, ...], float], tolerance: float
) -> None:
    """Check that two searches found the same SIDs with the same scores.

    SIDs that close to the last score may be missing from either: rounding cuts there.

    Raises:
        AssertionError: if they did not; it says what differs.
    """
    cut = min(theirs.values())
    for sid in mine.keys() ^ theirs.keys():
        score = (mine | theirs)[sid]
        assert abs(score - cut) <= tolerance, f"only one of both finds {sid}, at {score}"
    for sid in mine.keys() & theirs.keys():
        assert abs(mine[sid] - theirs[sid]) <= tolerance, (
            f"scores of {sid} differ: {mine[sid]}, {theirs[sid]}"
        )
