"""What is served: GRACE's model on a catalogue of the paper's size, or the demo's artefacts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from benchmarks.decode.shape import Shape
from benchmarks.exact_arrays import PLACES, SMALL, Maker
from grace.decode import BeamPlan
from grace.index import Index
from grace.index.bloom import BloomShape
from grace.index.build import IndexData
from grace.index.lookup import IntegerTable
from grace.model import EncoderDecoder, FeatureSpec

POOL = 1024
"""Distinct requests; more than a level has in flight."""
FIELDS = (
    {"name": "age", "kind": "numeric"},
    {"name": "gender", "kind": "categorical"},
    {"name": "country", "kind": "categorical"},
    {"name": "interests", "kind": "bag", "max_length": 40},
)
"""Besides the history; of the paper's inputs only the kinds are known."""
ACTIONS = ("view", "click", "buy")
START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class World:
    """An index, a model and requests for them.

    Attributes:
        index, model: as `Engine` takes them.
        plan: of the search, None for the default.
        requests: as a client sends them.
        counts: sizes, for the record.
    """

    index: Index | str
    model: EncoderDecoder | str
    plan: BeamPlan | None
    requests: Sequence[dict]
    counts: dict[str, int]

    def write_requests(self, path: Path) -> Path:
        """Write the requests as JSON Lines and return the path."""
        path.write_text("".join(json.dumps(request) + "\n" for request in self.requests))
        return path


def paper_world(scale: float, shape: Shape, events: int, seed: int, device: str) -> World:
    """Draw a catalogue as `benchmarks.exact_arrays` does, whole enough to be retrieved from.

    Args:
        scale: 1 for 4·10^7 ads on 3·10^7 SIDs.
        shape: of the model, whose weights are random.
        events: of a request's history.
        seed: of everything.
        device: that draws the arrays.
    """
    maker = Maker(scale, 1, seed, device)
    arrays = maker.arrays()
    num_ads = len(arrays.ad_signatures)
    # Ads are numbered by (SID, id), so ascending ids are their own order.
    numbers = torch.arange(num_ads, dtype=torch.int32)
    index = Index(
        IndexData(
            trie=arrays.trie,
            sid_ad_offsets=arrays.sid_ad_offsets,
            ad_ids=IntegerTable(numbers.long() + 1, numbers),
            ad_signatures=arrays.ad_signatures,
            ad_paused=arrays.ad_state,
            tables=arrays.tables,
            bloom=BloomShape(),
        )
    )
    draw = np.random.default_rng([seed, 1])
    requests = [paper_request(number, num_ads, events, draw) for number in range(POOL)]
    torch.manual_seed(seed)
    fields = [*FIELDS, {"name": "history", "kind": "sequence", "max_length": events}]
    declared = FeatureSpec.from_dict({"fields": [dict(field) for field in fields]})
    features = declared.fit([request["features"] for request in requests])
    model = EncoderDecoder(shape.config, features).eval()
    counts = {name: arrays.counts[name] for name in ("ads", "sids", "signatures", "place_lists")}
    counts |= {"places_per_request": 64, "events_per_request": events}
    return World(index, model, shape.plan, requests, counts)


def paper_request(number: int, num_ads: int, events: int, draw: np.random.Generator) -> dict:
    """One request with 64 places, 40 interests and a history of ads."""

    def some(name: str, count: int, below: int) -> list[str]:
        return [f"{name} {i}" for i in draw.choice(below, count, replace=False).tolist()]

    age, moment = int(draw.integers(13, 80)), int(draw.integers(0, 60 * 86_400))
    country, gender = some("country", 1, SMALL["country"])[0], some("gender", 1, SMALL["gender"])[0]
    interests = some("interest", 40, SMALL["interest"])
    history = [
        {"ad_id": ad_id, "action": ACTIONS[action], "at": moment - 3600 * (events - i)}
        for i, (ad_id, action) in enumerate(
            zip(
                draw.integers(1, num_ads, events, endpoint=True).tolist(),
                draw.integers(0, len(ACTIONS), events).tolist(),
                strict=True,
            )
        )
    ]
    return {
        "id": str(number),
        "attributes": {
            "country": country,
            "gender": gender,
            "age": age,
            "language": some("language", 2, SMALL["language"]),
            "interest": interests,
            "place": some("place", 64, PLACES),
        },
        "features": {
            "age": age,
            "gender": gender,
            "country": country,
            "interests": interests,
            "history": history,
        },
        "at": (START + timedelta(seconds=moment)).isoformat(),
    }


def demo_world(folder: Path) -> World:
    """Take what `grace demo` left in a folder."""
    with (folder / "requests.jsonl").open() as file:
        requests = [json.loads(line) for line in islice(file, POOL)]
    index = Index.open(folder / "index")
    counts = {"ads": index.num_ads, "sids": index.num_sids}
    return World(str(folder / "index"), str(folder / "model"), None, requests, counts)
