"""Metrics, logs and traces: what they say, and that they cost nothing where they are off."""

import io
import json
import logging
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from web_cases import REQUEST, config

from grace.errors import ConfigError
from grace.serve.app import build_app
from grace.serve.logs import json_logs
from grace.serve.tracing import Tracing, start_tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def samples(client) -> dict:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_metrics_count_calls_answers_and_refusals(own):
    engine, _ = own
    client = TestClient(build_app(engine, config()))
    answer = client.post("/v1/retrieve", json=REQUEST).json()
    client.post("/v1/retrieve", json={"requests": [REQUEST, {}]})
    client.post("/v1/retrieve", content=b"")
    client.get("/made/up")
    found = samples(client)
    assert found["grace_calls_total", "200", "POST /v1/retrieve", "http"] == 2
    assert found["grace_calls_total", "415", "POST /v1/retrieve", "http"] == 1
    assert found["grace_calls_total", "404", "http", "other"] == 1
    assert found["grace_call_seconds_count", "POST /v1/retrieve", "http"] == 3
    assert found["grace_requests_total", "ok"] == 2
    assert found["grace_requests_total", "invalid"] == 1
    assert found["grace_refusals_total", "content_type"] == 1
    assert found["grace_refusals_total", "path"] == 1
    assert found["grace_funnel_total", "returned_ads"] == 2 * len(answer["ads"])
    assert 0 < found["grace_eligibility_rate",] <= 1
    assert found["grace_batch_size_sum",] == 3
    assert found["grace_batch_size_bucket", "1"] <= found["grace_batch_size_bucket", "+Inf"] <= 3
    assert found["grace_stage_seconds_count", "queue"] == 3
    assert found["grace_stage_seconds_count", "compute"] == found["grace_batch_size_count",]
    assert found["grace_stage_seconds_bucket", "+Inf", "queue"] == 3
    assert found["grace_graph_replays_total",] == found["grace_index_swaps_total",] == 0
    assert found["grace_index_info", str(engine.index.version)] == 1
    assert found["grace_index_ads",] == 125
    assert found["grace_ready",] == 1
    assert found["grace_admitted_requests",] == 0
    assert found["grace_admitted_limit",] == engine.options.max_admitted
    engine.drain(20)
    assert samples(client)["grace_ready",] == 0


def test_two_applications_count_apart(own):
    first, second = (TestClient(build_app(own[0], config())) for _ in range(2))
    first.get("/v1/model")
    assert ("grace_calls_total", "200", "GET /v1/model", "http") not in samples(second)


def log_lines(client, calls, level="info"):
    stream = io.StringIO()
    with json_logs(level, stream):
        calls(client)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_call_is_one_line_of_json(client):
    def calls(client):
        client.post(
            "/v1/retrieve", json=REQUEST, headers={"x-request-id": "q1", "x-client-id": "c"}
        )
        client.post("/v1/retrieve", content=b"")

    good, bad = log_lines(client, calls)
    assert (good["request_id"], good["client"], good["status"]) == ("q1", "c", 200)
    assert good["message"] == "POST /v1/retrieve"
    assert good["stages_ms"]["queue"] >= 0
    assert {"time", "level", "ms", "version", "batch_size"} <= set(good)
    assert (bad["status"], bad["reason"]) == (415, "content_type")


def test_lines_of_success_can_be_left_out_those_of_faults_cannot(own):
    engine, model = own
    app = build_app(engine, config(telemetry={"access_log": 0.0}))
    client = TestClient(app, raise_server_exceptions=False)
    assert log_lines(client, lambda c: c.post("/v1/retrieve", json=REQUEST)) == []
    model.fault = RuntimeError("odd \ud800")
    lines = log_lines(client, lambda c: c.post("/v1/retrieve", json=REQUEST), "error")
    assert any("odd \\ud800" in line.get("traceback", "") for line in lines)
    lines = log_lines(client, lambda c: c.post("/v1/retrieve", json=REQUEST))
    assert lines[-1]["status"] == 500


def test_logs_are_as_before_afterwards():
    before = logging.getLogger().handlers[:]
    with json_logs("debug", io.StringIO()):
        assert logging.getLogger().handlers != before
    assert logging.getLogger().handlers == before


def test_spans_hang_on_the_callers_and_have_a_child_per_stage(own):
    engine, model = own
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    client = TestClient(build_app(engine, config(), tracing), raise_server_exceptions=False)
    client.post("/v1/retrieve", json=REQUEST, headers={"traceparent": PARENT})
    model.fault = RuntimeError()
    client.post("/v1/retrieve", json=REQUEST, headers={"traceparent": "nonsense"})
    tracing.close()
    *stages, call, failed = exporter.get_finished_spans()
    assert call.name == "POST /v1/retrieve"
    assert f"{call.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{call.parent.span_id:016x}" == PARENT.split("-")[2]
    assert "queue" in [stage.name for stage in stages]
    assert {stage.parent.span_id for stage in stages} == {call.context.span_id}
    assert all(call.start_time <= s.start_time <= s.end_time for s in stages)
    assert (failed.parent, failed.status.is_ok) == (None, False)


def test_a_caller_that_does_not_sample_is_not_traced(own):
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    client = TestClient(build_app(own[0], config(), tracing))
    client.post("/v1/retrieve", json=REQUEST, headers={"traceparent": PARENT[:-1] + "0"})
    tracing.close()
    assert exporter.get_finished_spans() == ()


def test_tracing_is_off_by_default_and_says_what_it_lacks(monkeypatch):
    assert start_tracing("", 1.0) is None
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"grace\[otel\]"):
        start_tracing("http://127.0.0.1:1/v1/traces", 1.0)


def test_the_server_needs_no_opentelemetry():
    code = "import sys; sys.modules['opentelemetry'] = None; import grace.serve.server"
    subprocess.run([sys.executable, "-c", code], check=True)
