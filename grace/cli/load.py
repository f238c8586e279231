"""`grace load`: how much a server carries, and how its latency grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from grace.errors import ConfigError
from grace.files import check_writable


def load(
    url: Annotated[str, typer.Option(help="Of the server; the path is /v1/retrieve by default.")],
    requests: Annotated[Path, typer.Option(help="Requests to send, JSON Lines.")],
    closed: Annotated[
        str | None, typer.Option(help="Closed loop: requests in flight, such as 1,2,4,8.")
    ] = None,
    opened: Annotated[
        str | None, typer.Option("--open", help="Open loop: requests a second, such as 100,200.")
    ] = None,
    duration: Annotated[float, typer.Option(help="Seconds of each level that count.")] = 10.0,
    count: Annotated[
        int | None, typer.Option(help="Requests of each level, in place of --duration.")
    ] = None,
    warmup: Annotated[float, typer.Option(help="Seconds of load before they count.")] = 2.0,
    timeout: Annotated[float, typer.Option(help="Seconds until a request is given up.")] = 10.0,
    mean: Annotated[float, typer.Option(help="Limit of the mean latency, ms.")] = 20.0,
    p99: Annotated[float, typer.Option(help="Limit of the 99th percentile, ms.")] = 100.0,
    processes: Annotated[int, typer.Option(help="Processes that send.")] = 1,
    connections: Annotated[int, typer.Option(help="The most connections of an open loop.")] = 512,
    order: Annotated[str, typer.Option(help="Of the requests: cycle | sample.")] = "cycle",
    seed: Annotated[int, typer.Option(help="Of arrivals and of the sample.")] = 0,
    header: Annotated[
        list[str] | None, typer.Option(help="One more, 'name: value'; may be repeated.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificates to trust, for https.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG of throughput against latency.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Put load on a server, level by level, and say what it carries under the limits."""
    try:
        import hdrh  # noqa: F401
        import httptools  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'grace[load]'") from None
    from rich.console import Console

    from grace.load.bodies import read_bodies
    from grace.load.capacity import Limits
    from grace.load.options import LoadOptions, parse_levels
    from grace.load.processes import run_levels
    from grace.load.report import conclusions, table, to_dict
    from grace.load.target import Target

    limits = Limits(mean_ms=mean, p99_ms=p99)
    options = LoadOptions(
        levels=parse_levels(closed, opened), duration_s=duration, count=count, warmup_s=warmup,
        timeout_s=timeout, connections=connections, processes=processes, order=order, seed=seed,
    )  # fmt: skip
    target = Target.parse(url, header or (), None if ca is None else str(ca))
    if plot is not None:
        check_writable(plot)
    bodies = read_bodies(requests)
    target.try_out(bodies[0], timeout)
    levels, stopped = [], False
    try:
        for measured in run_levels(target, bodies, options):
            levels.append(measured)
    except KeyboardInterrupt:
        stopped = True
    if as_json:
        asked = {"url": target.url, "requests": str(requests), "processes": processes, "seed": seed}
        typer.echo(json.dumps(asked | to_dict(levels, limits), indent=1))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = 140
        console.print(table(levels, limits))
        typer.echo("\n".join(conclusions(levels, limits)))
    if plot is not None:
        from grace.load.chart import draw

        typer.echo(draw(levels, limits, plot), err=True)
    if stopped:
        raise typer.Exit(130)
