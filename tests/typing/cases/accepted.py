"""What type checkers must accept, and what they must see in it."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, assert_type
from uuid import UUID

import jobq
from jobq import (
    AsyncJob,
    Batch,
    BatchJob,
    Calls,
    Client,
    Context,
    Dead,
    Flow,
    FlowRun,
    Job,
    Queue,
    Receipt,
    Registry,
    Retry,
    Snooze,
    SyncJob,
    job,
)
from jobq.flows.definition import Failure, MapStep, Step
from jobq.protocols import rsmq
from jobq.protocols.reliable import AsyncReliableQueue, PendingItem, Popped
from jobq.topics import AsyncTopic, Retention, TopicBatch


@job
def bare(x: int, y: int = 1) -> int:
    return x + y


@job(queue="low", retries=5, timeout="30s", retry=jobq.retry.listed([1, 5, timedelta(minutes=1)]))
def declared(path: str, *, width: int) -> str:
    return path * width


@job
async def fetch(url: str) -> bytes:
    return url.encode()


@job(
    name="mail.send",
    result_ttl=60,
    retry_on=(ConnectionError, TimeoutError),
    dead_on=lambda error: False,
)
async def send(to: str) -> None:
    raise Retry(after=timedelta(seconds=3)) if to else Snooze(5)


def plain(x: float) -> list[float]:
    raise Dead("no")


wrapped = job(retry=lambda failures, error: None if failures > 3 else 2.0 * failures)(plain)

assert_type(bare(1, y=2), int)
assert_type(bare.enqueue(1, y=2), Receipt[int])
assert_type(bare.enqueue(1).result(timeout=3), int)
assert_type(declared.enqueue("a", width=2).result(), str)
assert_type(declared.options(delay=3).enqueue("a", width=2), Receipt[str])
assert_type(fetch.enqueue("u").result(), bytes)
coroutine: Coroutine[Any, Any, bytes] = fetch("u")
assert_type(wrapped(1.5), list[float])
assert_type(wrapped.enqueue(1.5).result(), list[float])
assert_type(bare.enqueue_many([(1, 2), (3,)]), Sequence[Receipt[int]])
assert_type(bare.enqueue_many(bare.args(x, y=2) for x in range(3)), Sequence[Receipt[int]])
assert_type(declared.enqueue_many([declared.args("a", width=2)]), Sequence[Receipt[str]])
assert_type(bare.receipt("mid").result(), int)
assert_type(bare.enqueue(1).cancel(), bool)
assert_type(bare.enqueue(1).status().word, str)
assert_type(jobq.current(), Context)
assert_type(jobq.connect("redis://"), Client)
assert_type(jobq.__version__, str)

either: list[Job[..., Any]] = [bare, declared, fetch, send, wrapped]
sync: SyncJob[[float], list[float]] = wrapped
asynchronous: AsyncJob[[str], bytes] = fetch
registry = Registry()
in_registry = job(registry=registry)(plain)
on_client = bare.options(
    client=jobq.connect("redis://"), queue="high", mid="a", at=datetime.now(UTC),
    on_conflict="requeue", until="1h", lease="5m", headers={"a": "b"}, retries=1, hard_timeout=9, result_ttl=None,
)  # fmt: skip
assert_type(on_client.enqueue(1), Receipt[int])
assert_type(bare.options(unique=["a"], until="start", on_conflict="replace").unique_mid(1), str)
assert_type(bare.options(unique=lambda a, **_: a, throttle="1h").enqueue(1), Receipt[int])
job(debounce="10s", debounce_max="2m", unique=True, registry=registry, name="b")(plain)
Queue("low", jobq.connect()).admin.counts()

shared = rsmq.Rsmq(jobq.connect(), ns="rsmq", realtime=True)
assert_type(shared.create_queue("q", vt=5), int)
assert_type(shared.send_messages("q", ["a", b"b"]), list[str])
assert_type(shared.receive_message("q", wait="5s"), rsmq.RsmqMessage | None)
assert_type(shared.get_queue_attributes("q").created, int | None)
assert_type(shared.delete_messages("q", shared.receive_messages("q", 5)), list[bool])
assert_type(shared.consume("q", lambda message: print(message.sent), max_receives=3), rsmq.Consumed)


@job
def rows_of(number: int, deep: bool = False) -> dict[str, int]:
    return {"number": number}


@job
def report(rows: list[dict[str, int]], title: str = "") -> str:
    return title


@job
def alert(failures: list[Failure]) -> None: ...


flow = Flow("import", id="2026-11-22", keep="7d")
rows = flow.map(rows_of, range(3), results=True)
assert_type(rows, MapStep[dict[str, int]])
stats = flow.step(report, rows.results, title="all")
assert_type(stats, Step[str])
gate = flow.wait("approved", timeout="3d", after=stats)
flow.step(alert, rows.failures, after=rows, when="failed")
flow.step(alert.args(rows.failures), after={rows: "failed", gate: "ended"}, name="alert")
assert_type(flow.step(fetch, stats.result, after=[gate, stats]), Step[bytes])
assert_type(flow.step(fetch, gate.value, name="again"), Step[bytes])
assert_type(flow.map(rows_of, [rows_of.args(1, deep=True)]), MapStep[dict[str, int]])
assert_type(flow.map(rows_of, [(1, True), (2, False)], after=gate), MapStep[dict[str, int]])
assert_type(flow.step(rows_of.options(key="k", delay="5m"), 1), Step[dict[str, int]])
flow.flow(Flow("inner"), after=flow.at(datetime.now(UTC), name="later"))
run = flow.start()
assert_type(run, FlowRun)
assert_type(run.result(stats, timeout=60), str)
assert_type(run.result(rows), list[dict[str, int]])
assert_type(run.status().progress, str)


@dataclass
class Line:
    sku: str
    price: Decimal


class Colour(Enum):
    RED = "red"


@job(result_ttl="1h")
def invoice(order: UUID, lines: list[Line], due: date | None = None, **notes: Colour) -> Decimal:
    return sum((line.price for line in lines), Decimal(0))


@job(typed=False)
def untyped(at: str) -> None: ...


order = UUID(int=1)
assert_type(invoice.enqueue(order, [Line("book", Decimal(1))], date.today()), Receipt[Decimal])
assert_type(invoice.enqueue(order, [], memo=Colour.RED).result(), Decimal)
assert_type(invoice.enqueue_many([invoice.args(order, [])]), Sequence[Receipt[Decimal]])
priced = flow.step(invoice, order, [], name="priced")
assert_type(priced, Step[Decimal])
assert_type(run.result(priced), Decimal)
assert_type(run.result("priced"), Any)
untyped.enqueue("2026-11-27")

batch = Batch(rows_of, range(3), results=True)
assert_type(batch.results, list[dict[str, int]])
batch.then(report, batch.results).on_failure(alert, batch.failures).on_end(fetch, "u").start()
added = jobq.current().flow.map(rows_of, [1, 2], name="more", results=True)
assert_type(added.results, list[dict[str, int]])
assert_type(jobq.current().flow.step(report.args(added.results), name="sum").result, str)


async def handle(message: rsmq.RsmqMessage) -> None: ...


async def main() -> None:
    assert_type(await rsmq.AsyncRsmq("redis://").pop_message("q"), rsmq.RsmqMessage | None)
    assert_type(await rsmq.AsyncRsmq().consume("q", handle, concurrency=9), rsmq.Consumed)
    assert_type(await rsmq.AsyncRsmq().send_messages("q", ["a"], delay=3), list[str])
    orders = AsyncTopic("orders")
    assert_type(await orders.append(b"x", key="k"), int)
    assert_type(await orders.set_limits(max_age=60), Retention)
    assert_type(await orders.reader("g", commit="auto").poll(10, block=5), TopicBatch)
    assert_type(await orders.group("g").subscribe(), bool)
    assert_type(await AsyncReliableQueue().pop(1, 0, "q", token="t"), list[Popped] | None)
    assert_type(await AsyncReliableQueue().pending("q", 0, 9), list[PendingItem])
    assert_type(await bare.aenqueue(1), Receipt[int])
    assert_type(await (await fetch.options(mid="u").aenqueue("u")).aresult(5), bytes)
    assert_type(await fetch("u"), bytes)
    assert_type(await (await flow.astart()).aresult(stats), str)


@job(queue="mail", batch=100, linger="1s", retries=3)
def send_all(calls: Calls[str, int]) -> None:
    for at, call in enumerate(calls):
        assert_type(call.mid, str)
        if call.args[1] < 0:
            calls.fail(at, ValueError(call.args))
        else:
            calls.done(at)


@job(batch=10, result_ttl=60)
def measure_all(calls: Calls[str]) -> list[int]:
    return [len(call.args[0]) for call in calls]


@job(batch=10, result_ttl=60)
async def fetch_all(calls: Calls[str]) -> list[bytes]:
    return [call.args[0].encode() for call in calls]


assert_type(fetch_all, BatchJob[[str], bytes])
assert_type(send_all, BatchJob[[str, int], Any])
assert_type(measure_all.enqueue("a"), Receipt[int])
assert_type(measure_all.options(delay=5).enqueue("a").result(), int)
send_all.enqueue("a", 1)
send_all.enqueue_many(send_all.args("a", n) for n in range(3))
send_all(Calls.of(send_all.args("a", 1), send_all.args("b", 2)))
