"""The spans of enqueue and run, as OpenTelemetry's SDK gets them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from jobq.errors import ConfigError, Dead, HoldKey, JobAborted, Retry, Snooze
from jobq.jobs.codec import decode, encode
from jobq.jobs.context import Call, current
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.observe import otel
from jobq.observe.otel import OtelMiddleware
from jobq.queue.types import Ending, Message

TRACE, SPAN = "0123456789abcdef0123456789abcdef", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01", "baggage": "shop=9"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-00"}


class Traced:
    """A provider that keeps its spans, and jobs within its middleware."""

    def __init__(self, sampler: Any = ALWAYS_ON, meter_provider: Any = None) -> None:
        self.kept = InMemorySpanExporter()
        provider = TracerProvider(sampler=ParentBased(sampler))
        provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.tracer = provider.get_tracer("test")
        self.registry = Registry()
        self.middleware = OtelMiddleware(provider, meter_provider)
        self.registry.middleware.add(self.middleware)

    @property
    def spans(self) -> list[Any]:
        return list(self.kept.get_finished_spans())

    def run(
        self, function: Any, *args: Any, headers: Any = None, waited_s: float = 2, attempt: int = 1,
        **options: Any,
    ) -> Ending:  # fmt: skip
        """One attempt."""
        made = job(name="mail.send", registry=Registry(), retries=1, **options)(function)
        self.registry.add(made)
        at = round((time.time() - waited_s) * 1000)
        content = encode(made.name, args, {}, at, headers or {})
        executor = Executor(self.registry, worker="here")
        call = executor.resolve("low", Message("mid-1", content, attempt, 0, 1, "gen", "tok", 0))
        assert isinstance(call, Call)
        return asyncio.run(executor.arun(call)) if made.is_async else executor.run(call)


@pytest.fixture
def traced() -> Traced:
    return Traced()


def ids() -> tuple[str, str]:
    """Trace and span that are current."""
    found = trace.get_current_span().get_span_context()
    return f"{found.trace_id:032x}", f"{found.span_id:016x}"


def succeed() -> None:
    assert ids() == (current().trace_id, current().span_id)
    assert baggage.get_baggage("shop") == "9"


async def asucceed() -> None:
    await asyncio.sleep(0)
    succeed()


def fail(*args: Any) -> None:
    raise ValueError("no such customer")


@pytest.mark.parametrize("function", [succeed, asucceed], ids=["sync", "async"])
def test_attempt_is_a_span_in_the_trace_of_its_enqueuer_and_links_it(traced: Traced, function: Any):
    ended = traced.run(function, headers=HEADERS, attempt=2)
    assert ended.outcome == "done"
    (span,) = traced.spans
    assert (span.name, span.kind, span.status.status_code) == (
        "process low", SpanKind.CONSUMER, StatusCode.UNSET,
    )  # fmt: skip
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == SPAN
    assert [f"{link.context.span_id:016x}" for link in span.links] == [SPAN]
    attributes = dict(span.attributes)
    assert 1900 < attributes.pop("jobq.wait_ms") < 120_000
    assert attributes.pop("messaging.message.body.size") > 50
    for name in ("server.address", "server.port"):
        attributes.pop(name, None)
    assert attributes == {
        "messaging.system": "jobq", "messaging.destination.name": "low", "messaging.message.id": "mid-1",
        "messaging.operation.type": "process", "messaging.operation.name": "process",
        "messaging.client.id": "here", "code.function.name": f"{__name__}.{function.__name__}",
        "jobq.job": "mail.send", "jobq.attempt": 2, "jobq.generation": "gen", "jobq.outcome": "done",
    }  # fmt: skip
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize(
    ("headers", "waited_s", "options"),
    [(HEADERS, 3700, {}), (HEADERS, 1, {"trace": "link"}), ({}, 1, {}), ({"traceparent": "00-x"}, 1, {})],
)  # fmt: skip
def test_attempt_is_a_trace_of_its_own_after_an_hour_by_declaration_and_without_a_header(
    traced: Traced, headers: Any, waited_s: float, options: Any
):
    traced.run(lambda: None, headers=headers, waited_s=waited_s, **options)
    (span,) = traced.spans
    assert span.parent is None and f"{span.context.trace_id:032x}" != TRACE
    assert [f"{link.context.span_id:016x}" for link in span.links] == [SPAN] * (headers is HEADERS)


@pytest.mark.parametrize(
    ("error", "attempt", "outcome", "failed"),
    [
        (ValueError("no such customer"), 1, "retry", "ValueError"),
        (ValueError("no such customer"), 2, "dead", "ValueError"),
        (Dead("on purpose"), 1, "dead", "jobq.errors.Dead"),
        (Retry(after=1), 1, "retry", "jobq.errors.Retry"),
        (Snooze(3), 1, "snoozed", None),
        (HoldKey(3), 1, "snoozed", None),
        (JobAborted(), 1, "aborted", None),
    ],
)
def test_failures_are_errors_and_what_a_job_does_on_purpose_is_none(
    traced: Traced, error: BaseException, attempt: int, outcome: str, failed: str | None
):
    def end(secret: str) -> None:
        raise error

    try:
        traced.run(end, "an argument", attempt=attempt)
    except JobAborted:
        pass
    (span,) = traced.spans
    assert span.attributes["jobq.outcome"] == outcome
    assert span.attributes.get("error.type") == failed
    assert span.status.status_code == (StatusCode.ERROR if failed else StatusCode.UNSET)
    assert [event.name for event in span.events] == ["exception"] * bool(failed)
    assert "an argument" not in span.to_json()


def test_broken_retry_rules_still_end_the_span(traced: Traced):
    def broken(failures: int, error: BaseException) -> float:
        raise RuntimeError("a broken policy")

    assert traced.run(fail, retry=broken).outcome == "retry"
    (span,) = traced.spans
    assert span.attributes["jobq.outcome"] == "retry"


@pytest.mark.parametrize(
    ("sampler", "headers", "seen"),
    [
        (ALWAYS_OFF, HEADERS, 1),
        (ALWAYS_OFF, UNSAMPLED, 0),
        (ALWAYS_OFF, {**UNSAMPLED, "baggage": "shop=9"}, 0),
        (ALWAYS_OFF, {}, 0),
        (ALWAYS_ON, UNSAMPLED, 0),
        (ALWAYS_ON, {"traceparent": "00-broken-00"}, 0),
        (ALWAYS_ON, {}, 1),
    ],
)
def test_sampling_follows_the_enqueuer_and_what_a_job_does_follows_its_attempt(
    sampler: Any, headers: Any, seen: int
):
    traced, inside = Traced(sampler), []

    def work() -> None:
        inside.append(trace.get_current_span().get_span_context())
        with traced.tracer.start_as_current_span("inner") as span:
            inside.append(span.get_span_context())

    traced.run(work, headers=headers)
    assert len(traced.spans) == 2 * seen or headers.get("traceparent") == "00-broken-00"
    if headers is UNSAMPLED:
        assert [f"{one.trace_id:032x}" for one in inside] == [TRACE] * 2
        assert f"{inside[0].span_id:016x}" == SPAN


def test_unsampled_fast_path_is_left_where_a_sampler_or_the_job_decides_otherwise():
    heard = ParentBased(ALWAYS_OFF, remote_parent_not_sampled=ALWAYS_ON)
    traced = Traced()
    provider = TracerProvider(sampler=heard)
    provider.add_span_processor(SimpleSpanProcessor(traced.kept))
    traced.registry.middleware.remove(traced.middleware)
    traced.registry.middleware.add(OtelMiddleware(provider))
    traced.run(lambda: None, headers=UNSAMPLED)
    assert len(traced.spans) == 1
    linked = Traced()
    linked.run(lambda: None, headers=UNSAMPLED, trace="link")
    assert len(linked.spans) == 1


def test_enqueue_is_a_span_and_its_context_goes_with_the_message(traced: Traced, client: Any):
    @job(name="mail.send", queue="low", registry=traced.registry)
    def send(to: str) -> None: ...

    token = attach(baggage.set_baggage("shop", "9"))
    try:
        with traced.tracer.start_as_current_span("request") as request:
            receipt = send.options(client=client).enqueue("an argument")
            many = send.options(client=client).enqueue_many([("a",), ("b",)])
    finally:
        detach(token)
    one, batch, _ = traced.spans
    assert one.parent.span_id == batch.parent.span_id == request.get_span_context().span_id
    assert (one.name, one.kind) == ("send low", SpanKind.PRODUCER)
    assert one.attributes["messaging.message.id"] == receipt.mid
    assert one.attributes["messaging.operation.type"] == "send"
    assert one.attributes["messaging.operation.name"] == "enqueue"
    assert one.attributes["server.address"] and "an argument" not in one.to_json()
    assert batch.attributes["messaging.batch.message_count"] == 2
    for span, mids in ((one, [receipt.mid]), (batch, [each.mid for each in many])):
        for mid in mids:
            headers = decode(content_of(client, mid)).headers
            assert headers["traceparent"].split("-")[1:3] == [
                f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}",
            ]  # fmt: skip
            assert headers["baggage"] == "shop=9"


def content_of(client: Any, mid: str) -> bytes:
    return client.command("HGET", f"{client.namespace}:{{low}}:messages", mid)


def test_headers_of_the_caller_stay_and_baggage_is_cut_to_what_fits(traced: Traced, client: Any):
    @job(name="mail.send", queue="low", registry=traced.registry)
    def send() -> None: ...

    context = baggage.set_baggage("long", "x" * 900)
    token = attach(baggage.set_baggage("last", "y" * 300, context))
    try:
        given = {"traceparent": f"00-{TRACE}-{SPAN}-01", "baggage": "mine=1"}
        receipt = send.options(client=client, headers=given).enqueue()
    finally:
        detach(token)
    headers = decode(content_of(client, receipt.mid)).headers
    assert headers["traceparent"] == given["traceparent"]
    assert headers["baggage"].startswith("mine=1,long=x") and "last" not in headers["baggage"]


def test_refused_enqueue_is_an_error_of_its_span(traced: Traced, client: Any):
    @job(name="mail.send", queue="low", registry=traced.registry)
    def send(value: object) -> None: ...

    with pytest.raises(Exception, match="JSON"):
        send.options(client=client).enqueue({1, 2}.__iter__())
    (span,) = traced.spans
    assert span.status.status_code == StatusCode.ERROR
    assert span.attributes["error.type"].startswith("jobq.errors.")


def test_metrics_are_counted_where_there_is_a_meter_provider(client: Any):
    reader = InMemoryMetricReader()
    traced = Traced(meter_provider=MeterProvider([reader]))
    traced.run(fail, headers=UNSAMPLED)
    sent = job(name="other", queue="low", registry=traced.registry)(lambda: None)
    sent.options(client=client).enqueue_many([(), ()])
    (resource,) = reader.get_metrics_data().resource_metrics  # type: ignore[union-attr]
    found: Any = {
        metric.name: metric.data.data_points for metric in resource.scope_metrics[0].metrics
    }
    (counted,) = found["messaging.client.sent.messages"]
    (consumed,) = found["messaging.client.consumed.messages"]
    (took,) = found["messaging.process.duration"]
    assert (counted.value, consumed.value, took.count) == (2, 1, 1)
    assert (consumed.attributes["error.type"], consumed.attributes["jobq.job"]) == (
        "ValueError", "mail.send",
    )  # fmt: skip


def test_nothing_is_done_without_a_provider(client: Any):
    assert not otel.is_active()
    registry = Registry()
    registry.middleware.add(OtelMiddleware())
    send = job(name="mail.send", queue="low", registry=registry)(lambda: None)
    receipt = send.options(client=client).enqueue()
    assert decode(content_of(client, receipt.mid)).headers == {}


@pytest.mark.parametrize("value", ["links", None, 1])
def test_other_ways_to_trace_are_refused(value: Any):
    with pytest.raises(ConfigError, match="trace"):
        job(name="mail.send", registry=Registry(), trace=value)(lambda: None)


def test_worker_is_refused_where_the_sdk_exports_before_the_fork():
    otel.refuse_exporter_threads()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="OtelBatchSpanRecordProcessor")
    thread.start()
    try:
        with pytest.raises(ConfigError, match="opentelemetry-instrument"):
            otel.refuse_exporter_threads()
    finally:
        ended.set()
        thread.join()
