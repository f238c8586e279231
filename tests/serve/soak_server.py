"""The process that a soak asks: `grace serve` as it is, over a model whose logits are a table.

    python -m tests.serve.soak_server DIRECTORY

Prints its ports, `[http, admin]`, as one line of JSON when it is ready.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import tempfile
from collections import deque
from pathlib import Path

import torch

from grace.decode import BeamPlan
from grace.serve import Engine, EngineOptions, server
from grace.serve.config import (
    AdminConfig,
    GrpcConfig,
    HttpConfig,
    IndexConfig,
    ModelConfig,
    ServeConfig,
    TelemetryConfig,
)
from tests.serve.soak_truth import NUM_SIDS, VOCAB, WIDTHS
from tests.table_generator import TableGenerator


def make_engine(config: ServeConfig) -> Engine:
    """What `grace serve` does with the model's directory, for a model that has none."""
    generator = TableGenerator(VOCAB)
    generator.calls = deque(maxlen=0)  # it would grow for as long as the soak runs
    plan = BeamPlan(WIDTHS, NUM_SIDS)
    return Engine(config.index.directory, generator, plan, config.batching)


def free_port() -> int:
    """Return a port that nobody has now; 0 would serve no admin."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def announce(greeting: str) -> None:
    """Print the ports in the order in which the greeting names them."""
    print(json.dumps([int(port) for port in re.findall(r":(\d+)$", greeting, re.M)]), flush=True)


def main(directory: str) -> int:
    """Serve until SIGTERM."""
    torch.set_num_threads(1)
    server.make_engine = make_engine
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text("{}")
        config = ServeConfig(
            index=IndexConfig(directory=directory),
            model=ModelConfig(directory=model),
            batching=EngineOptions(max_batch=8, max_admitted=12, timeout_ms=10_000.0),
            http=HttpConfig(port=0, max_requests=4, body_timeout_s=2.0),
            grpc=GrpcConfig(port=0),
            admin=AdminConfig(port=free_port()),
            telemetry=TelemetryConfig(log_level="error"),
        )
        return 0 if server.serve(config, announce) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
