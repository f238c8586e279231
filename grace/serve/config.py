"""What `grace serve` is told: one TOML file, flags over it, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

from grace.errors import ConfigError
from grace.serve.engine import EngineOptions
from grace.serve.security import is_loopback


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """Which index.

    Attributes:
        directory: of the index; the server follows its CURRENT.
    """

    directory: str


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, and how it searches; as `grace.Retriever` takes it.

    Attributes:
        directory: of a trained model.
        name: that the Open Inference Protocol knows it by.
        plan: beams entering each step; by default 256 wherever the trie is as wide.
        num_sids: SIDs kept after the last step; by default the plan's last width.
        matching: what keeps beams.
        device: where the model, the matcher and the search run.
        precision: of the decoder.
        top_k: ads per request unless the request says otherwise; by default all.
        table_bytes: the most memory of the first layer's tables.
    """

    directory: str
    name: str = "grace"
    plan: tuple[int, ...] | None = None
    num_sids: int | None = None
    matching: str = "exact"
    device: str = "cpu"
    precision: str = "auto"
    top_k: int | None = None
    table_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """The HTTP port; limits, tokens and TLS hold for gRPC too.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        max_body_bytes: of a body, larger ones are refused.
        max_depth: how deep a body's objects and arrays may nest.
        max_requests: the most requests of one body.
        max_connections: open at once; others get 503.
        body_timeout_s: the longest that headers, and then a body, may take to come.
        drain_timeout_s: on SIGTERM, the longest wait for answers that are due.
        token_file: `NAME TOKEN` lines; with it every call but health needs a token.
        tls_cert, tls_key: PEM files; both or neither.
        workers: processes that speak HTTP for the engine's; 0 speaks it in the engine's own. By
            default, beside a GPU, one for three cores and four at most; beside a CPU none.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 1_048_576
    max_depth: int = 16
    max_requests: int = 32
    max_connections: int = 1024
    body_timeout_s: float = 10.0
    drain_timeout_s: float = 30.0
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    workers: int | None = None


@dataclass(frozen=True, kw_only=True)
class GrpcConfig:
    """The gRPC port, on the same host.

    Attributes:
        port: 0 serves no gRPC.
    """

    port: int = 8001


@dataclass(frozen=True, kw_only=True)
class AdminConfig:
    """The port of those who run the server: pause, resume, roll back.

    Attributes:
        host, port: where to listen; port 0 serves no admin.
        token_file: `NAME TOKEN` lines; required beyond loopback.
    """

    host: str = "127.0.0.1"
    port: int = 8002
    token_file: str = ""


@dataclass(frozen=True, kw_only=True)
class PlaygroundConfig:
    """The page at `/`.

    Attributes:
        enabled: whether it is served.
        people: a file of requests to pick from; by default `requests.jsonl` beside the index.
        catalog: the catalogue, for titles; by default `catalog.jsonl` or `.parquet` beside it.
    """

    enabled: bool = True
    people: str = ""
    catalog: str = ""


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig:
    """What the server tells of itself besides `/metrics`.

    Attributes:
        log_level: debug, info, warning or error.
        access_log: share of successful requests that get a line; failures of the server always do.
        otlp_endpoint: URL that traces go to, OTLP over HTTP; needs the extra `otel`.
        trace_share: share of requests traced where the caller does not decide it.
        timeline: file for a timeline of stages in Chrome's format, written at the end.
    """

    log_level: str = "info"
    access_log: float = 1.0
    otlp_endpoint: str = ""
    trace_share: float = 1.0
    timeline: str = ""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Everything, a section an attribute; docs/serving.md has the table of keys.

    Raises:
        ConfigError: if settings contradict each other, naming the key to change.
    """

    index: IndexConfig
    model: ModelConfig
    batching: EngineOptions = field(default_factory=EngineOptions)
    http: HttpConfig = field(default_factory=HttpConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    playground: PlaygroundConfig = field(default_factory=PlaygroundConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)

    def __post_init__(self):
        for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
            if getattr(self.http, one) and not getattr(self.http, other):
                raise ConfigError(f"http.{other}: expected a file, as http.{one} is set")
        if self.admin.port and not is_loopback(self.admin.host) and not self.admin.token_file:
            raise ConfigError(
                f"admin.token_file: expected a file of tokens, as admin.host {self.admin.host!r} "
                "can be reached from other machines"
            )
        if self.http.max_requests > self.batching.max_admitted:
            raise ConfigError(
                f"http.max_requests: expected at most batching.max_admitted "
                f"({self.batching.max_admitted}), got {self.http.max_requests}: such a body could "
                "never be admitted"
            )
        if self.model.num_sids is not None and self.model.plan is None:
            raise ConfigError(
                "model.plan: expected widths such as [1, 256, 256], as model.num_sids is set"
            )
        ports = {}
        for key in ("http", "grpc", "admin"):
            port = getattr(self, key).port
            if port and port in ports:
                raise ConfigError(
                    f"{key}.port: expected another port than {ports[port]}.port, {port}"
                )
            ports[port] = key
