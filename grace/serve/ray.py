"""The same engine on Ray Serve: replicas that come and go with the load (docs/ray.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import ray
from ray import serve
from ray.serve.exceptions import BackPressureError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from grace.errors import ConfigError
from grace.serve.app import build_app
from grace.serve.config import ServeConfig
from grace.serve.config_file import load_config
from grace.serve.engine import Overloaded
from grace.serve.health import why_not_ready
from grace.serve.server import check_machine, make_engine

ATTEMPTS = 4  # of one request, each on a replica that Ray believes to be alive
_OPTIONS = ("config", "min_replicas", "max_replicas")


@serve.ingress()
class Replica:
    """A whole engine. It follows the index's directory by itself, so versions need no redeploy."""

    def __init__(self, config: ServeConfig):
        check_machine(config)
        self._config = config
        self._engine = make_engine(config)

    def __serve_build_asgi_app__(self) -> Starlette:
        """Return the HTTP application of `grace serve`, which Ray's proxy passes calls to."""
        return build_app(self._engine, self._config)

    async def retrieve(self, raw: dict, client: str = "", timeout_ms: float | None = None) -> bytes:
        """Answer one request in the form of `/v1/retrieve`; a wrong one in its `error`.

        Raises:
            Expired: if its deadline passed.
            BackPressureError: if the engine is full, which bodies of many requests can bring about.
        """
        try:
            ticket = self._engine.submit(raw, client, timeout_ms, as_text=True)
        except Overloaded:  # which would not survive the way to the caller
            most = self._config.batching.max_admitted
            raise BackPressureError(num_queued_requests=most, max_queued_requests=most) from None
        try:
            return (await asyncio.wrap_future(ticket.future)).to_json()
        finally:
            if not ticket.future.done():
                ticket.cancel()

    def check_health(self) -> None:
        """Tell Ray whether to keep this replica.

        Raises:
            RuntimeError: if it takes no requests.
        """
        reason = why_not_ready(self._engine)
        if reason is not None:
            raise RuntimeError(reason)

    def __del__(self):
        # Ray calls it when a replica that is not needed has answered what it had.
        if hasattr(self, "_engine"):
            self._engine.drain(self._config.http.drain_timeout_s)


def build(config: ServeConfig, min_replicas: int = 1, max_replicas: int = 1) -> serve.Application:
    """Return an application for `serve.run`.

    Args:
        config: as `grace serve` takes it. Ports are Ray's; every node must see the directories.
        min_replicas: kept even without load.
        max_replicas: that Ray may start. With `model.device` on a GPU each takes a whole one.

    Raises:
        ConfigError: if the configuration asks for what Ray's proxy does not do, or the numbers of
            replicas contradict each other.
    """
    if config.http.tls_cert:
        raise ConfigError("http.tls_cert: Ray's proxy speaks plain HTTP; end TLS before it")
    if not 1 <= min_replicas <= max_replicas:
        raise ConfigError(
            f"min_replicas must be from 1 to max_replicas ({max_replicas}), got {min_replicas}"
        )
    replica = serve.deployment(
        Replica,
        name="grace",
        # One batch runs while the next one forms; beyond that a further replica would help.
        autoscaling_config={
            "min_replicas": min_replicas,
            "initial_replicas": min_replicas,
            "max_replicas": max_replicas,
            "target_ongoing_requests": 2 * config.batching.max_batch,
        },
        # An engine refuses what is beyond this; Ray then never sends it, and asks another.
        max_ongoing_requests=config.batching.max_admitted,
        max_queued_requests=config.batching.max_admitted,
        graceful_shutdown_timeout_s=config.http.drain_timeout_s,
        ray_actor_options={"num_gpus": int(config.model.device.startswith("cuda"))},
    )
    return replica.bind(config)


def app(options: dict[str, str]) -> serve.Application:
    """Build from a file, for `serve run grace.serve.ray:app config=serve.toml max_replicas=8`.

    Raises:
        ConfigError: as `build` and `load_config`, or if an option is unknown.
    """
    for key in options:
        if key not in _OPTIONS:
            raise ConfigError(f"{key}: unknown option; known are {', '.join(_OPTIONS)}")
    if "config" not in options:
        raise ConfigError("config: expected a TOML file, config=serve.toml")
    # Replicas run in folders of their own.
    config = load_config(str(Path(options["config"]).resolve()), {})
    least = _count(options, "min_replicas", 1)
    return build(config, least, _count(options, "max_replicas", least))


def _count(options: dict[str, str], key: str, default: int) -> int:
    text = options.get(key, str(default))
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{key}: expected a number of replicas, got {text!r}")
    return int(text)


async def ask(
    handle: DeploymentHandle, raw: dict, client: str = "", timeout_ms: float | None = None
) -> dict[str, Any]:
    """Answer a request from inside the cluster, also if the replica that had it dies.

    A request changes nothing, so another replica may answer it again.

    Args:
        handle: of the application, as `serve.run` and `serve.get_app_handle` return it.
        raw: as `Engine.submit` takes it.
        client: whose it is.
        timeout_ms: from its arrival at a replica to its deadline.

    Returns:
        What `/v1/retrieve` answers; a wrong request has its `error`.

    Raises:
        RayActorError: if one replica after another died with it.
        BackPressureError: if all replicas have as many requests as they may hold.
    """
    left = ATTEMPTS
    while True:
        left -= 1
        try:
            return orjson.loads(await handle.retrieve.remote(raw, client, timeout_ms))
        except (ray.exceptions.RayActorError, ReplicaUnavailableError):
            if left == 0:
                raise
