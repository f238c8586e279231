"""Rows of the record format from evaluations, and lines of the log of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks import record

METRICS = ("recall@10", "ndcg@10")
TIGER = "TIGER, its paper"
AUDITED = "audited run"
BEST = "best published found, 2026"
PUBLISHED = {
    ("beauty", "tiger"): ((0.0648, 0.0384), TIGER),
    ("sports", "tiger"): ((0.0400, 0.0225), TIGER),
    ("toys", "tiger"): ((0.0712, 0.0432), TIGER),
    ("beauty", "sasrec"): ((0.0859, 0.0503), AUDITED),
    ("beauty", "generation"): ((0.0927, 0.0547), BEST),
    ("beauty", "best"): ((0.0927, 0.0547), BEST),
    ("sports", "generation"): ((0.0544, 0.0308), BEST),
    ("sports", "best"): ((0.0544, 0.0308), BEST),
}
"""Recall@10 and NDCG@10 on the test split, all items ranked, and who published them."""


def rows_of(reports: Mapping[tuple[str, str, str], dict]) -> list[dict]:
    """Rows of evaluations by (data, variant, split); validation's metrics say so in their name."""
    rows = []
    for (data, variant, split), report in reports.items():
        for place, metric in enumerate(METRICS):
            quality = report["quality"]["all"][metric]
            seeds = quality["by_seed"]
            counts = {
                "low": quality["low"],
                "high": quality["high"],
                "users_low": quality["users_low"],
                "users_high": quality["users_high"],
                "users": quality["num_users"],
                "items": report["num_items"],
                "seeds": len(seeds),
            }
            counts |= {f"seed {number}": value for number, value in enumerate(seeds, 1)}
            published = PUBLISHED.get((data, variant)) if split == "test" else None
            reference = published and {"value": published[0][place], "source": published[1]}
            name = metric if split == "test" else f"{split} {metric}"
            rows.append(
                record.row(
                    data,
                    variant,
                    name,
                    "rate",
                    quality["value"],
                    n=len(seeds),
                    counts=counts,
                    reference=reference,
                )
            )
    return rows


def log_line(data: str, variant: str, trial: str, changes: Sequence[str], report: dict) -> str:
    """A row of the table in docs/quality-log.md; whether it was kept is for people to say."""
    cells = [data, f"{variant}, {trial}", " ".join(f"`{change}`" for change in changes)]
    for metric in METRICS:
        quality = report["quality"]["all"][metric]
        cells.append(f"{quality['value']:.4f} ({quality['low']:.4f}-{quality['high']:.4f})")
    cells.append(str(len(quality["by_seed"])))
    return f"| {' | '.join([*cells, ''])}|"
