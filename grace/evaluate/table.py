"""An evaluation as tables for a terminal, one column a matching mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.table import Table

from grace.evaluate.metrics import Estimate
from grace.evaluate.run import Evaluation, ModeEvaluation


def tables(evaluation: Evaluation) -> Iterator[Table]:
    """Ranking, decoding, pass rates by bucket, pass rates at fixed numbers of ads."""
    yield ranking_table(evaluation)
    yield decoding_table(evaluation)
    yield pass_rate_table(evaluation)
    yield fixed_table(evaluation)


def ranking_table(evaluation: Evaluation) -> Table:
    """Recall, NDCG and SID hits of the held-out ad."""
    table = Table(
        title="Held-out ad",
        caption=f"{evaluation.num_evaluated} of {evaluation.num_requests} requests; the held-out ad"
        f" is in the catalogue for {evaluation.num_known}, eligible for {evaluation.num_eligible}"
        " (eligible_…). 95 % intervals.",
    )
    table.add_column("metric")
    for mode in evaluation.modes:
        table.add_column(mode, justify="right")
    for name in next(iter(evaluation.modes.values())).ranking:
        add_row(table, evaluation, name, lambda mode, name=name: decimals(mode.ranking[name]))
    return table


def decoding_table(evaluation: Evaluation) -> Table:
    """How each mode spends the same beams."""
    widths = ", ".join(map(str, evaluation.plan["widths"]))
    table = Table(
        title="Decoding at equal beams",
        caption=f"plan ({widths}) → {evaluation.plan['num_sids']} SIDs; means over requests",
    )
    table.add_column("per request")
    for mode in evaluation.modes:
        table.add_column(mode, justify="right")
    first = next(iter(evaluation.modes.values())).decoding
    add_row(table, evaluation, "eligible SIDs", lambda m: interval(m.decoding.eligible_sid_rate))
    for t in range(len(first.live_beams)):
        add_row(
            table,
            evaluation,
            f"step {t}: wasted / live beams",
            lambda mode, t=t: (
                f"{number(mode.decoding.wasted_beams[t])} / {number(mode.decoding.live_beams[t])}"
            ),
        )
    add_row(table, evaluation, "generated ads", lambda m: number(m.decoding.generated_ads))
    add_row(table, evaluation, "eligible ads returned", lambda m: number(m.decoding.returned_ads))
    add_row(table, evaluation, "ad pass rate", lambda m: interval(m.decoding.ad_pass_rate))
    return table


def pass_rate_table(evaluation: Evaluation) -> Table:
    """GRACE's Table 3."""
    table = Table(
        title="Ad pass rate by number of generated ads",
        caption="bloom is a share of what passes bitmask, window of what passes both; final is"
        " their product",
    )
    table.add_column("generated ads")
    table.add_column("mode")
    for name in ("users", "bitmask", "bloom", "window", "final"):
        table.add_column(name, justify="right")
    for bucket in next(iter(evaluation.modes.values())).pass_rates:
        for mode, measured in evaluation.modes.items():
            rates = measured.pass_rates[bucket]
            stages = (rates.bitmask, rates.bloom, rates.window)
            table.add_row(
                bucket,
                mode,
                f"{rates.users} ({rates.user_share:.1%})",
                *(percent(stage.value) for stage in stages),
                interval(rates.final),
            )
        table.add_section()
    return table


def fixed_table(evaluation: Evaluation) -> Table:
    """Pass rate among the first generated ads."""
    table = Table(
        title="Ad pass rate at a fixed number of generated ads",
        caption="the first ads in order of score, for users for whom every mode in the catalogue"
        " generates as many",
    )
    table.add_column("ads")
    table.add_column("users", justify="right")
    for mode in evaluation.modes:
        table.add_column(mode, justify="right")
    for rates in zip(*(measured.fixed for measured in evaluation.modes.values()), strict=True):
        users = max(rate.users for rate in rates)
        cells = [
            interval(rate.final) + ("" if rate.users == users else f" of {rate.users} users")
            for rate in rates
        ]
        table.add_row(f"first {rates[0].ads}", str(users), *cells)
    return table


def add_row(
    table: Table, evaluation: Evaluation, label: str, cell: Callable[[ModeEvaluation], str]
) -> None:
    """One row with a cell per mode."""
    table.add_row(label, *(cell(measured) for measured in evaluation.modes.values()))


def decimals(estimate: Estimate) -> str:
    """Such as `0.123 (0.101-0.148)`."""
    if estimate.value is None:
        return "-"
    return f"{estimate.value:.3f} ({estimate.low:.3f}-{estimate.high:.3f})"


def interval(estimate: Estimate) -> str:
    """Such as `12.3% (10.1-14.8)`."""
    if estimate.value is None:
        return "-"
    return f"{estimate.value:.1%} ({100 * estimate.low:.1f}-{100 * estimate.high:.1f})"


def percent(share: float | None) -> str:
    """Such as `12.3%`."""
    return "-" if share is None else f"{share:.1%}"


def number(estimate: Estimate) -> str:
    """A mean with one digit behind the point."""
    return "-" if estimate.value is None else f"{estimate.value:,.1f}"
