"""Soak a server: requests right and wrong, swaps every second, pauses, clients that go, SIGTERM.

    python -m tests.serve.soak --requests 100000

One process serves over HTTP; this one sends, publishes versions and compares every answer with
brute force over the index version that the answer names. It prints a summary; the exit code is 1 if
a request was lost, an answer was wrong, the server grew, or it did not go down well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grace
from tests.serve import soak_truth
from tests.serve.raw_http import Connection, NoAnswer, request
from tests.serve.soak_traffic import BUSY, Shot, Traffic
from tests.serve.soak_truth import SWITCHES, Truth

CLIENTS = 16
SWAP_S, SWITCH_S, SAMPLE_S = 1.0, 0.25, 0.5
MAX_GROWTH_BYTES = 32 << 20
MAX_SHOWN = 10
SERVER = "tests.serve.soak_server"


@dataclass
class Soak:
    """What one soak knows and has found so far.

    Attributes:
        left: requests still to be sent before SIGTERM.
        begun, done: how many switches of ad states were begun, and acknowledged.
        states: the states of the ads; `states[i]` holds after i switches.
        ended: when SIGTERM was sent, seconds of `perf_counter`.
        statuses: answers by kind of request and status.
        problems: everything that must not be.
        sizes: resident bytes of the server over time.
    """

    port: int
    admin_port: int
    directory: Path
    seed: int
    left: int
    process: int
    truth: Truth
    pool: list[dict]
    schema: dict
    begun: int = 0
    done: int = 0
    states: list[soak_truth.State] = field(default_factory=lambda: [frozenset()])
    ended: float = float("inf")
    statuses: Counter = field(default_factory=Counter)
    versions: Counter = field(default_factory=Counter)
    changes: Counter = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)


async def send_until_the_end(soak: Soak, client: int) -> None:
    """One client: a request at a time, over one connection as long as it lasts."""
    traffic, connection = Traffic(soak.seed, client, soak.pool), None
    while True:
        soak.left -= 1
        shot, states, sent = traffic.next(), soak.done, float("inf")
        try:
            if connection is None:
                connection = await Connection.open(soak.port)
            await connection.send(shot.content)
            sent = time.perf_counter()
            if shot.leaves:
                await asyncio.sleep(0.002 * (client % 3))
                connection.reset() if client % 2 else connection.close()
                connection = None
                soak.statuses[shot.kind, "gone"] += 1
                continue
            status, headers, body = await connection.receive()
        except (ConnectionError, NoAnswer) as error:
            connection = None
            if min(sent, time.perf_counter()) >= soak.ended:
                return  # by a server that was told to go down before it was asked
            soak.problems.append(f"{shot.kind}: no answer: {error!r}")
            continue
        judge(soak, shot, status, body, states)
        if headers.get("connection") == "close" or shot.unfinished:
            connection.close()
            connection = None
        if status in BUSY:
            await asyncio.sleep(0.01)


def judge(soak: Soak, shot: Shot, status: int, body: bytes, states: int) -> None:
    """Compare an answer with what it must be.

    Args:
        soak: notes what is wrong.
        shot: what was sent.
        status: of the answer.
        body: of the answer.
        states: how many switches had been acknowledged when it was sent.
    """
    soak.statuses[shot.kind, status] += 1
    if status in BUSY:
        return
    if status not in shot.statuses:
        soak.problems.append(f"{shot.kind}: status {status}: {body[:300]!r}")
        return
    try:
        answer = json.loads(body)
    except ValueError:
        soak.problems.append(f"{shot.kind}: status {status} with no JSON: {body[:300]!r}")
        return
    if not shot.numbers:
        if not (answer["error"]["field"] and answer["error"]["message"]):
            soak.problems.append(f"{shot.kind}: an error that says nothing: {body[:300]!r}")
        return
    parts = answer["responses"] if shot.kind == "several" else [answer]
    now = soak.states[states : soak.begun + 1]
    for number, name, part in zip(shot.numbers, shot.ids, parts, strict=True):
        if "version" in part:
            soak.versions[part["version"]] += 1
        elif part["error"]["field"] == "server":  # too late for this one
            continue
        if part.get("id", name) != name:
            soak.problems.append(f"asked {name}, answered {part['id']}")
        fault = soak.truth.fault(number, part, now)
        if fault:
            soak.problems.append(f"request {name}, number {number}: {fault}")


async def ask_admin(soak: Soak, path: str, body: dict | None = None) -> dict:
    """Return the answer to a call of the admin port; another status than 200 is a problem."""
    connection = await Connection.open(soak.admin_port)
    content = None if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    await connection.send(request(f"/admin/{path}", content, method))
    status, _, answer = await connection.receive()
    connection.close()
    if status != 200:
        soak.problems.append(f"{path}: status {status}: {answer[:300]!r}")
    return json.loads(answer)


async def switch_ads(soak: Soak) -> None:
    """Pause, resume, bid off and on: an ad at a time, each acknowledged before the next."""
    draw = random.Random(f"switches {soak.seed}")
    while True:
        await asyncio.sleep(SWITCH_S)
        flag, ad_id = switch = draw.choice(SWITCHES)
        state = soak.states[-1] ^ {switch}
        on, off = ("pause", "resume") if flag == "paused" else ("bid-off", "bid-on")
        soak.states.append(state)
        soak.begun += 1
        change = on if switch in state else off
        await ask_admin(soak, change, {"ad_ids": [ad_id]})
        soak.done += 1
        soak.changes[change] += 1


async def swap_versions(soak: Soak) -> None:
    """Every second a version is published, or after two of them the one before made current."""
    draw = random.Random(f"swaps {soak.seed}")
    number = 0
    while True:
        await asyncio.sleep(SWAP_S)
        if soak.changes["publish"] > 2 * soak.changes["rollback"] + 1:
            await ask_admin(soak, "rollback", {})
            soak.changes["rollback"] += 1
            continue
        number = (number + draw.randint(1, soak_truth.NUM_CATALOGS - 1)) % soak_truth.NUM_CATALOGS
        rows = soak_truth.catalog(number)
        await asyncio.to_thread(grace.build_index, rows, soak.schema, out=soak.directory)
        soak.changes["publish"] += 1


async def watch_size(soak: Soak) -> None:
    """Note what the server holds: memory and open files."""
    while True:
        await asyncio.sleep(SAMPLE_S)
        status = Path(f"/proc/{soak.process}/status").read_text()
        soak.sizes.append(int(status.split("VmRSS:")[1].split()[0]) << 10)
        soak.files.append(len(list(Path(f"/proc/{soak.process}/fd").iterdir())))


async def check_last_version(soak: Soak) -> None:
    """With no more swaps, the server is at the version that CURRENT names."""
    refreshed, status = await ask_admin(soak, "refresh", {}), await ask_admin(soak, "status")
    current = (soak.directory / "CURRENT").read_text().strip()
    if {refreshed.get("version"), status.get("version")} != {current} or status.get("failure"):
        soak.problems.append(f"not at {current}: {refreshed}, {status}")


async def run(soak: Soak, server: subprocess.Popen) -> None:
    """Send everything, then end the server under load, and check how it went."""
    clients = [asyncio.create_task(send_until_the_end(soak, n)) for n in range(CLIENTS)]
    others = [asyncio.create_task(task(soak)) for task in (switch_ads, swap_versions, watch_size)]
    while soak.left > 0 or not soak.changes["rollback"]:
        if server.poll() is not None or len(soak.problems) > 1000:
            break
        await asyncio.sleep(0.05)
        for task in (*clients, *others):
            if task.done():
                task.result()  # raises what ended it
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await check_last_version(soak)
    soak.ended = time.perf_counter()
    server.send_signal(signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*clients), 60)
    code = await asyncio.to_thread(server.wait, 60)
    if code != 0:
        soak.problems.append(f"the server ended with {code}")
    check_growth(soak)


def check_growth(soak: Soak) -> None:
    """Memory after a quarter, warm, against memory at the end: flat within a bound."""
    part = len(soak.sizes) // 4
    if part < 4:
        return
    early = statistics.median(soak.sizes[part : 2 * part])
    late = statistics.median(soak.sizes[-part:])
    if late - early > MAX_GROWTH_BYTES:
        soak.problems.append(f"memory grew from {early / 1e6:.0f} MB to {late / 1e6:.0f} MB")
    early, late = (statistics.median(s) for s in (soak.files[part : 2 * part], soak.files[-part:]))
    if late > early + CLIENTS:
        soak.problems.append(f"open files grew from {early:.0f} to {late:.0f}")


def summary(soak: Soak, seconds: float) -> str:
    """Return what happened, in lines."""
    kinds, by_status = Counter(), Counter()
    for (kind, status), count in soak.statuses.items():
        kinds[kind] += count
        by_status[status] += count
    sizes = [size / 1e6 for size in soak.sizes] or [0.0]
    part = max(1, len(sizes) // 4)
    lines = [
        f"{kinds.total():,} requests in {seconds:.0f} s, seed {soak.seed}",
        "by kind: " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()),
        "by status: " + ", ".join(f"{s} {count:,}" for s, count in by_status.most_common()),
        "changes: " + ", ".join(f"{name} {count:,}" for name, count in soak.changes.most_common()),
        "answers by version: " + ", ".join(f"{v} {c:,}" for v, c in soak.versions.most_common()),
        f"server's memory: {statistics.median(sizes[part : 2 * part] or sizes):.0f} MB after a "
        f"quarter, {statistics.median(sizes[-part:]):.0f} MB at the end, most {max(sizes):.0f} MB",
        f"problems: {len(soak.problems)}",
    ]
    return "\n".join(lines + [f"  {problem[:2000]}" for problem in soak.problems[:MAX_SHOWN]])


def make_versions(folder: Path, schema: dict) -> dict[str, int]:
    """Return which version each catalogue becomes; ids follow from content."""
    return {
        grace.build_index(soak_truth.catalog(n), schema, out=folder / str(n)).version: n
        for n in range(soak_truth.NUM_CATALOGS)
    }


def main() -> int:
    """Run one soak; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.serve.soak")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    schema = {"attributes": list(soak_truth.SCHEMA)}
    with tempfile.TemporaryDirectory() as name:
        folder, directory = Path(name), Path(name) / "index"
        versions = make_versions(folder, schema)
        grace.build_index(soak_truth.catalog(0), schema, out=directory)
        server = subprocess.Popen(
            [sys.executable, "-m", SERVER, str(directory)], stdout=subprocess.PIPE, text=True
        )
        try:
            ports = json.loads(server.stdout.readline())
            pool = soak_truth.pool(options.seed)
            soak = Soak(
                *ports, directory, options.seed, options.requests, server.pid,
                Truth(versions, pool), pool, schema,
            )  # fmt: skip
            began = time.perf_counter()
            asyncio.run(run(soak, server))
            print(summary(soak, time.perf_counter() - began))
        finally:
            server.kill()
            server.wait()
    return int(bool(soak.problems))


if __name__ == "__main__":
    sys.exit(main())
