"""Small indexes, declarations, requests and models for the tests of the model and its training."""

from __future__ import annotations

import numpy as np
import torch

import grace
from grace.catalog import Schema
from grace.model import EncoderDecoder, FeatureSpec, ModelConfig

SCHEMA = Schema.from_dict({"attributes": [{"name": "age", "kind": "range"}]})
FIELDS = {
    "fields": [
        {"name": "gender", "kind": "categorical", "values": ["f", "m"]},
        {"name": "age", "kind": "numeric", "mean": 40.0, "std": 10.0},
        {"name": "genres", "kind": "bag", "values": ["a", "b", "c"], "max_length": 3},
        {"name": "clicks", "kind": "sequence", "actions": ["view", "buy"], "max_length": 6},
        {"name": "saves", "kind": "sequence", "actions": [], "max_length": 2},
    ]
}
SPEC = FeatureSpec.from_dict(FIELDS)


def small_index(
    num_ads: int = 60, num_levels: int = 3, num_codes: int = 5, seed: int = 0
) -> grace.Index:
    """Ads 0, 1, ... with random SIDs; some share one."""
    sids = np.random.default_rng(seed).integers(0, num_codes, (num_ads, num_levels))
    rows = [{"ad_id": i, "sid": sid.tolist(), "rules": {}} for i, sid in enumerate(sids)]
    return grace.build_index(rows, SCHEMA)


def random_features(rng: np.random.Generator, num_ads: int = 60) -> dict:
    """Features for SPEC; each field is missing now and then, histories may be empty."""

    def events(most: int) -> list[dict]:
        times = np.sort(rng.integers(0, 10**6, rng.integers(0, most + 1)))
        return [
            {"ad_id": int(rng.integers(num_ads)), "action": str(rng.choice(["view", "buy", "?"])),
             "at": int(at)}
            for at in times
        ]  # fmt: skip

    features = {
        "gender": str(rng.choice(["f", "m", "x"])),
        "age": float(rng.normal(40, 10)),
        "genres": [str(g) for g in rng.choice(["a", "b", "c", "d"], rng.integers(0, 4))],
        "clicks": events(10),
        "saves": events(3),
    }
    return {name: value for name, value in features.items() if rng.random() < 0.8}


def small_config(**sizes) -> ModelConfig:
    defaults = {
        "num_levels": 3, "vocab_size": 5, "model_dim": 12, "num_heads": 2, "head_dim": 4,
        "ffn_dim": 16, "encoder_layers": 2, "decoder_layers": 2, "num_context_tokens": 5,
        "num_recent_tokens": 2, "num_summary_tokens": 2,
    }  # fmt: skip
    return ModelConfig(**(defaults | sizes))


def small_model(spec: FeatureSpec = SPEC, seed: int = 0, **sizes) -> EncoderDecoder:
    torch.manual_seed(seed)
    return EncoderDecoder(small_config(**sizes), spec).eval()


def with_random_norms(model: EncoderDecoder, seed: int = 0) -> EncoderDecoder:
    """The model, with weights in its norms as training leaves them: no two alike."""
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, torch.nn.RMSNorm):
            noise = torch.randn(module.weight.shape, generator=draw)
            module.weight.data = 1 + 0.3 * noise
    return model
