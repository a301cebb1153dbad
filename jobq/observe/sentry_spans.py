"""The spans that Sentry's Queues page reads, for both tracing modes of the SDK.

Names follow Sentry's queue conventions: queue.publish for enqueues, queue.process for runs, each with
messaging.message.id, messaging.destination.name and messaging.system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import sentry_sdk
from sentry_sdk.consts import OP, SPANDATA
from sentry_sdk.tracing import TransactionSource

from jobq.jobs.context import Context
from jobq.jobs.job import Outgoing
from jobq.jobs.results import Receipt

ORIGIN = "auto.queue.jobq"
OP_JOB = "queue.task.jobq"  # where Sentry's own integrations put theirs
SYSTEM = "redis"
BODY_SIZE = "messaging.message.body.size"
BATCH_COUNT = "messaging.batch.message_count"

Published = Callable[["Outgoing", "list[Receipt[Any]]"], None]
Ended = Callable[[str], None]


def trace_headers() -> dict[str, str]:
    """Return the headers `sentry-trace` and `baggage` of the current trace."""
    return dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())


@contextmanager
def publishing(outgoing: Outgoing) -> Iterator[Published]:
    """Open a `queue.publish` span around an enqueue, if there is a parent span."""
    if _streams():
        parent: Any = _traces().get_current_span()
    else:
        parent = sentry_sdk.get_current_span()
    if parent is None:
        yield lambda outgoing, receipts: None
        return
    with _span(OP.QUEUE_PUBLISH, outgoing.job.name) as span:

        def published(outgoing: Outgoing, receipts: list[Receipt[Any]]) -> None:
            mid = receipts[0].mid if len(receipts) == 1 else ""
            _set(span, _messaging(mid, outgoing.queue) | {BODY_SIZE: outgoing.size})
            if len(receipts) != 1:
                _set(span, {BATCH_COUNT: len(receipts)})

        yield published


@contextmanager
def processing(context: Context, headers: Mapping[str, str]) -> Iterator[Ended]:
    """Continue the trace in `headers` with a transaction, and open the run's span in it."""
    sampling = {
        "jobq": {
            "job": context.job,
            "mid": context.mid,
            "queue": context.queue,
            "attempt": context.attempt,
        }
    }
    with (
        _transaction(context.job, headers, sampling) as transaction,
        _span(OP.QUEUE_PROCESS, context.job) as span,
    ):
        _set(span, _messaging(context.mid, context.queue) | _process_figures(context))

        def ended(status: str) -> None:
            for part in (span, transaction):
                _set_status(part, status)

        ended("ok")
        yield ended


def _messaging(mid: str, queue: str) -> dict[str, Any]:
    described = {SPANDATA.MESSAGING_DESTINATION_NAME: queue, SPANDATA.MESSAGING_SYSTEM: SYSTEM}
    return described | ({SPANDATA.MESSAGING_MESSAGE_ID: mid} if mid else {})


def _process_figures(context: Context) -> dict[str, Any]:
    figures: dict[str, Any] = {
        SPANDATA.MESSAGING_MESSAGE_RETRY_COUNT: context.attempt - 1,
        BODY_SIZE: context.size,
    }
    if context.enqueued_at:
        figures[SPANDATA.MESSAGING_MESSAGE_RECEIVE_LATENCY] = max(
            0.0, time.time() * 1000 - context.enqueued_at
        )
    return figures


def _traces() -> Any:
    """Return the SDK's module for streamed spans. Only newer SDKs have this module, and it isn't public yet."""
    return import_module("sentry_sdk.traces")


def _streams() -> bool:
    try:
        from sentry_sdk.tracing_utils import has_span_streaming_enabled
    except ImportError:  # an SDK that knows transactions only
        return False
    return bool(has_span_streaming_enabled(sentry_sdk.get_client().options))


def _transaction(name: str, headers: Mapping[str, str], sampling: dict[str, Any]) -> Any:
    if not _streams():
        transaction = sentry_sdk.continue_trace(
            dict(headers), op=OP_JOB, name=name, source=TransactionSource.TASK, origin=ORIGIN
        )
        return sentry_sdk.start_transaction(transaction, custom_sampling_context=sampling)
    _traces().continue_trace(dict(headers))
    sentry_sdk.Scope.set_custom_sampling_context(sampling)
    attributes: dict[str, Any] = {
        "sentry.op": OP_JOB,
        "sentry.origin": ORIGIN,
        "sentry.segment.name.source": TransactionSource.TASK.value,
    }
    return _traces().start_span(name=name, attributes=attributes, parent_span=None)


def _span(op: str, name: str) -> Any:
    if _streams():
        return _traces().start_span(
            name=name, attributes={"sentry.op": op, "sentry.origin": ORIGIN}
        )
    return sentry_sdk.start_span(op=op, name=name, origin=ORIGIN)


def _set(span: Any, values: Mapping[str, Any]) -> None:
    put = span.set_attribute if hasattr(span, "set_attribute") else span.set_data
    for name, value in values.items():
        put(name, value)


def _set_status(span: Any, status: str) -> None:
    if _streams():
        span.status = "error" if status == "internal_error" else "ok"
    else:
        span.set_status(status)
