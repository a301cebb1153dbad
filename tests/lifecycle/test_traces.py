"""Spans of a real worker arrive at a collector, in the trace of the request that enqueued."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from jobq.jobs.middleware import everywhere
from jobq.observe.otel import OtelMiddleware
from tests.lifecycle.conftest import ROOT, until
from tests.lifecycle.jobs_traced import killed, third
from tests.observe.collector import collector
from tests.observe.intake import intake

TRACE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def website(client):
    """A program with a TracerProvider whose requests enqueue, and its exported spans."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    traced, app = OtelMiddleware(provider), FastAPI()
    everywhere.add(traced)

    @app.post("/orders")
    async def order() -> dict[str, str]:
        # As opentelemetry-instrument does around each request.
        with provider.get_tracer("shop").start_as_current_span("POST", kind=SpanKind.SERVER):
            receipt = await third.options(client=client).aenqueue()
        return {"mid": receipt.mid}

    async def post() -> int:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://shop"
        ) as shop:
            return (await shop.post("/orders")).status_code

    yield lambda: asyncio.run(post()), kept
    everywhere.remove(traced)


def test_one_trace_leads_from_a_request_to_the_third_attempt(website, start):
    shop, kept = website
    with collector() as (endpoint, spans):
        worker = start(
            "--processes", "1", "--name", "w-1", module="tests.lifecycle.jobs_traced",
            env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"},
        )  # fmt: skip
        assert shop() == 200
        until(lambda: len(spans) == 3)
        assert worker.stop() == 0
    send, request = kept.get_finished_spans()
    assert (request.kind, send.kind) == (SpanKind.SERVER, SpanKind.PRODUCER)
    assert send.parent.span_id == request.context.span_id
    sent = f"{send.context.span_id:016x}"
    for number, span in enumerate(spans, 1):
        assert span.trace_id == f"{request.context.trace_id:032x}"
        assert (span.name, span.kind) == ("process low", 5)
        assert (span.parent_id, span.links) == (sent, [sent])
        assert (span.attributes["jobq.attempt"], span.attributes["messaging.client.id"]) == (
            number, "w-1",
        )  # fmt: skip
        assert span.service == "jobq-worker"
    assert [span.attributes["jobq.outcome"] for span in spans] == ["retry", "retry", "done"]
    assert [span.status for span in spans] == [2, 2, 0]
    assert len({span.span_id for span in spans}) == 3


LAST = """
import os
from opentelemetry import trace
from jobq.observe import otel
assert otel.start()
trace.get_tracer("test").start_span("last").end()
otel.finish(60)
os._exit(0)
"""


@pytest.mark.one_server
def test_child_sends_what_waits_before_it_exits():
    with collector() as (endpoint, spans):
        # A child waits an hour for more spans, unless it exits.
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
        program = [sys.executable, "-c", LAST]
        subprocess.run(program, cwd=ROOT, env={**os.environ, **env}, check=True, timeout=300)
        assert [span.name for span in spans] == ["last"]


@pytest.mark.one_server
def test_worker_whose_collector_is_away_works_and_leaves(start, send):
    with collector() as (endpoint, _):
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    worker = start("--processes", "1", env=env)
    send("loaded", "b", "opentelemetry.sdk")
    until(lambda: "← loaded" in worker.log)
    assert worker.stop() == 0


def test_crashed_attempt_is_in_its_trace_and_its_death_at_sentry(client, start):
    headers = {"traceparent": f"00-{TRACE}-{'7' * 16}-01"}
    headers["sentry-trace"] = f"{TRACE}-{'7' * 16}-1"
    with collector() as (endpoint, spans), intake() as (dsn, events):
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "SENTRY_DSN": dsn}
        env["OTEL_BSP_SCHEDULE_DELAY"] = "100"
        worker = start(
            "--processes", "1", "--name", "w-1", "--crash-limit", "2",
            module="tests.lifecycle.jobs_traced", env=env,
        )  # fmt: skip
        receipt = killed.options(client=client, headers=headers).enqueue()
        until(lambda: receipt.status().word == "dead")
        until(lambda: len(spans) == 2 and len(events) == 3)
        assert worker.stop() == 0
    assert [span.attributes["jobq.outcome"] for span in spans] == ["crashed", "dead"]
    for number, span in enumerate(spans, 1):
        assert (span.name, span.trace_id, span.links) == ("process low", TRACE, ["7" * 16])
        assert span.parent_id == "7" * 16 and span.status == 2 and span.service == "jobq-worker"
        assert (span.attributes["error.type"], span.attributes["jobq.attempt"]) == (
            "signal",
            number,
        )
        assert (span.attributes["messaging.message.id"], span.attributes["jobq.job"]) == (
            receipt.mid, "killed",
        )  # fmt: skip
    *deaths, dead = sorted(events, key=lambda event: len(event["tags"]))
    assert [one["tags"]["jobq.cause"] for one in deaths] == ["signal", "signal"]
    assert (dead["tags"]["jobq.job"], dead["tags"]["jobq.mid"]) == ("killed", receipt.mid)
    assert dead["contexts"]["trace"]["trace_id"] == TRACE
    assert "SIGKILL" in dead["logentry"]["formatted"]


@pytest.mark.one_server
def test_worker_without_endpoint_does_not_load_what_traces(start, send, ledger):
    start("--processes", "1")
    send("loaded", "a", "opentelemetry.sdk.trace")
    [line] = until(lambda: ledger.lines("end"))
    assert line["loaded"] is False


@pytest.mark.one_server
def test_worker_does_not_start_where_the_sdk_exports_before_the_fork(start, tmp_path):
    (tmp_path / "exporting.py").write_text(
        "import jobq.jobs.registry, opentelemetry.sdk.trace as sdk\n"
        "from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter\n"
        "provider = sdk.TracerProvider()\n"
        "provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))\n"
    )
    worker = start(module="exporting", env={"PYTHONPATH": str(tmp_path)})
    assert worker.wait() == 2
    assert "opentelemetry-instrument" in worker.log
