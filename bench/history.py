"""A made-up history: a week of 40 jobs in 8 queues, as Arrow rows or as the entries of event streams.

Waits, runs and sizes are log-normal, loads follow the hours of the day, some attempts fail and a few messages die.
The same seed gives the same history.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobq import Client
from jobq.events import COLUMNS, SEPARATOR, attempt_record
from jobq.pipeline.schema import EVENT_COLUMNS, events_schema

QUEUES = ("mail", "media", "billing", "search", "reports", "hooks", "sync", "low")
VERBS = ("send", "resize", "charge_card", "reindex", "export_csv")
JOBS = tuple(f"app.{queue}.{verb}" for verb in VERBS for queue in QUEUES)
WORKERS = tuple(f"worker-{n}:{4000 + 37 * n}" for n in range(16))
ERRORS = (
    "TimeoutError",
    "ValueError",
    "requests.exceptions.ConnectionError",
    "app.errors.Refused",
)
KINDS = ("enqueued", "done", "retry", "dead")
DAY_MS = 86_400_000
START_MS = 1_763_337_600_000  # a Monday, 2025-11-17 UTC
#: Shares of messages with 1, 2, 3 and 4 attempts; messages with 4 attempts die.
ATTEMPTS = (0.93, 0.05, 0.015, 0.005)
FILLED = 1_000
APPEND = "for i = 1, #ARGV, 2 do redis.call('XADD', KEYS[1], ARGV[i], '1', ARGV[i + 1]) end"


def events(
    messages: int, *, seed: int = 1, days: int = 7, start_ms: int = START_MS, traces: bool = False,
    part: tuple[float, float] = (0.0, 1.0),
) -> pa.Table:  # fmt: skip
    """About 2.1 events per message in the columns of the view `events`, as their streams hold them.

    part: in which part of the whole time their messages are enqueued.
    """
    rng = np.random.default_rng(seed)
    job = np.minimum(rng.geometric(0.06, messages) - 1, len(JOBS) - 1)
    hour = rng.choice(24, messages, p=_busy())
    enqueued = start_ms + DAY_MS * rng.integers(0, days, messages)
    enqueued = enqueued + 3_600_000 * hour + rng.integers(0, 3_600_000, messages)
    low, high = part
    enqueued = start_ms + (low * days * DAY_MS + (enqueued - start_ms) * (high - low)).astype(
        np.int64
    )
    attempts = rng.choice(4, messages, p=ATTEMPTS) + 1
    # One row more than attempts: row 0 of each message is its enqueue.
    message = np.repeat(np.arange(messages), attempts + 1)
    first = np.repeat(np.cumsum(attempts + 1) - attempts - 1, attempts + 1)
    attempt = np.arange(len(message)) - first
    run_us = rng.lognormal(8 + job[message] % 7, 0.8).astype(np.int64) + 50
    spent_ms = rng.lognormal(4 + 2.5 * (hour[message] == 14), 1.2).astype(np.int64) + run_us // 1000
    spent_ms[attempt == 0] = 0
    # Attempts of a message follow one another, each after its own wait.
    total = np.cumsum(spent_ms)
    at = enqueued[message] + total - total[first]
    failed = attempt < attempts[message]
    kind = np.where(attempt == 0, 0, np.where(failed, 2, np.where(attempts[message] == 4, 3, 1)))
    return _table(rng, messages, message, job, at, kind, attempt, enqueued, run_us, traces)


def fill(client: Client, table: pa.Table) -> int:
    """Append the events to their queues' streams under their own ids; return their number."""
    for queue in QUEUES:
        rows = table.filter(pc.field("queue") == queue)
        key = f"{client.namespace}:{{{queue}}}:events"
        for batch in rows.to_batches(max_chunksize=FILLED):
            arguments = [text for pair in entries(batch) for text in pair]
            client.command("EVAL", APPEND, 1, key, *arguments, routed_by=key)
        client.command("SADD", f"{client.namespace}:queues", queue)
    return int(table.num_rows)


def entries(batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
    """Yield ids and values as the scripts write them."""
    columns = {name: _plain(batch[name]) for name in (*COLUMNS, "entry_at", "entry_seq")}
    for row in zip(*columns.values(), strict=True):
        (
            kind,
            mid,
            at,
            job,
            attempt,
            enqueued,
            run,
            cpu,
            rss,
            worker,
            error,
            mark,
            size,
            trace,
            _,
            _,
            *entry,
        ) = row
        record = f"{SEPARATOR * 9}{size}"
        if kind != "enqueued":
            record = attempt_record(
                job, attempt, max(1, at - enqueued), run, cpu, rss, worker, error or "", mark or "", size, trace or "",
            )  # fmt: skip
        yield f"{entry[0]}-{entry[1]}", SEPARATOR.join((kind, mid, str(at), record))


def _plain(column: pa.Array[Any]) -> list[Any]:
    """Values, times as epoch ms."""
    if pa.types.is_timestamp(column.type):
        column = pc.divide(column.cast(pa.int64()), 1000)
    return list(column.to_pylist())


def _busy() -> Any:
    """Return the share of each hour of the day."""
    shares = 1.2 + np.sin((np.arange(24) - 8) / 24 * 2 * np.pi)
    return shares / shares.sum()


def _table(
    rng: Any, messages: int, message: Any, job: Any, at: Any, kind: Any, attempt: Any, enqueued: Any, run_us: Any,
    traces: bool,
) -> pa.Table:  # fmt: skip
    rows, ran, failed = len(message), attempt > 0, kind >= 2
    queue, error = job % len(QUEUES), (job[message] + attempt) % len(ERRORS)
    order, entry_seq = _entries(queue[message], at)
    marks = [
        f"{n * 0x9E3779B97F4A7C15 % 2**64:016x}" for n in range(1, len(JOBS) * len(ERRORS) + 1)
    ]
    ids = _fixed(base64.urlsafe_b64encode(rng.bytes(12 * messages)), messages)
    trace = _fixed(rng.bytes(16 * messages).hex().encode(), messages)
    sizes = rng.lognormal(5, 0.6, messages).astype(np.int32) + 40
    arrays = {
        **dict.fromkeys(("queue", "base_queue"), _named(QUEUES, queue[message])),
        "kind": _named(KINDS, kind), "mid": ids.take(pa.array(message)),
        "job": _named(JOBS, job[message], ran), "attempt": pa.array(attempt, pa.int32()),
        "enqueued_at": _times(enqueued[message] * 1000, ran), "started_at": _times(at * 1000 - run_us, ran),
        "finished_at": _times(at * 1000), "entry_at": _times(at * 1000), "entry_seq": pa.array(entry_seq, pa.int32()),
        "wait_ms": _numbers(np.maximum(0, at - run_us // 1000 - enqueued[message]), ran),
        "run_us": _numbers(run_us, ran), "cpu_us": _numbers(run_us * 6 // 10, ran),
        "rss_kib": _numbers(60_000 + 500 * job[message] + rng.integers(0, 400, rows), ran, pa.int32()),
        "bytes": pa.array(sizes[message]), "worker": _named(WORKERS, rng.integers(0, len(WORKERS), rows), ran),
        "error": _named(ERRORS, error, failed),
        "fingerprint": _named(marks, job[message] * len(ERRORS) + error, failed),
        "trace_id": trace.take(pa.array(message, mask=~(ran & traces))),
        **dict.fromkeys(("key", "place", "flow", "step"), pa.nulls(rows, pa.string())),
        "version": pa.repeat(pa.scalar(1, pa.int32()), rows),
    }  # fmt: skip
    columns = [arrays[column.name] for column in EVENT_COLUMNS]
    return pa.table(columns, schema=events_schema()).take(pa.array(order))


def _entries(queue: Any, at: Any) -> tuple[Any, Any]:
    """Return the order of the streams, and each row's number among the rows of its queue and ms."""
    order = np.lexsort((at, queue))
    keys = queue[order] * 2**45 + at[order]
    new = np.r_[True, keys[1:] != keys[:-1]]
    position = np.arange(len(keys))
    sequence = np.empty(len(keys), np.int64)
    sequence[order] = position - np.maximum.accumulate(np.where(new, position, 0))
    return order, sequence


def _fixed(text: bytes, count: int) -> pa.StringArray:
    """Return texts of equal length, stored contiguously."""
    offsets: Any = np.arange(count + 1, dtype=np.int32) * (len(text) // count)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def _named(names: Any, index: Any, where: Any = None) -> pa.Array[Any]:
    mask = None if where is None else ~where
    taken: pa.Array[Any] = pa.array(names).take(pa.array(index, mask=mask))
    return taken


def _numbers(values: Any, where: Any, kind: Any = None) -> pa.Array[Any]:
    return pa.array(values, kind or pa.int64(), mask=~where)


def _times(micros: Any, where: Any = None) -> pa.Array[Any]:
    mask = None if where is None else ~where
    return pa.array(micros, pa.int64(), mask=mask).cast(pa.timestamp("us", tz="UTC"))
