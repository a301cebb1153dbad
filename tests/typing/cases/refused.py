"""What type checkers must refuse: every line marked E, and no other."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from uuid import UUID

import jobq
from jobq import Batch, Calls, Flow, Receipt, job
from jobq.protocols.reliable import AsyncReliableQueue
from jobq.protocols.rsmq import AsyncRsmq, Rsmq
from jobq.topics import AsyncTopic


@job(queue="low")
def add(x: int, y: int = 1) -> int:
    return x + y


@job
async def fetch(url: str) -> bytes:
    return url.encode()


add("a")  # E
add.enqueue("a")  # E
add.enqueue()  # E
add.enqueue(1, z=3)  # E
add.options(bogus=1)  # E
add.options(delay=[1])  # E
add.options(unique=3)  # E
add.options(on_conflict="never")  # E
add.options(can_update=True)  # E
add.options(retry=jobq.retry.fixed(1))  # E
add.options(delay=1).enqueue(1, z=3)  # E
add.options(delay=1).enqueue("a")  # E
fetch.enqueue(1)  # E
fetch.aenqueue(1)  # E
add.args("a")  # E
add.enqueue_many([fetch.args("u")])  # E
add.enqueue_many([1, 2])  # E
wrong: Receipt[str] = add.enqueue(1)  # E
text: str = add.enqueue(1).result()  # E
number: int = fetch("u")  # E
job(queu="low")  # E
job(retries="five")  # E
job(retry_on="ValueError")  # E
jobq.bogus  # E
Rsmq().send_message("q", 5)  # E
Rsmq().consume("q", print, max_receive=3)  # E
AsyncRsmq().consume("q", lambda message: 5)  # E
AsyncRsmq().send_message("q", 5)  # E
AsyncTopic("orders").append("text")  # E
AsyncTopic("orders").reader("g", commit="never")  # E
AsyncReliableQueue().pop("q")  # E


@job
def total(numbers: list[int]) -> int:
    return sum(numbers)


flow = Flow("import")
numbers = flow.map(add, range(3), results=True)
flow.step(total, 3)  # E
flow.step(total)  # E
flow.step(total, numbers)  # E
flow.step(total, numbers.failures)  # E
flow.step(fetch, "u", urls=3)  # E
flow.step(fetch.args(3), after=numbers)  # E
flow.step(total, [1], after=numbers, when="never")  # E
flow.map(add, ["x"])  # E
flow.map(add, 3)  # E
flow.map(add, [fetch.args("u")])  # E
flow.wait("go", timeout=[1])  # E
text_of_sum: str = flow.start().result(flow.step(total, numbers.results))  # E
Batch(add, ["x"])  # E
Batch(add, range(3)).then(total, "x")  # E


@job
def invoice(order: UUID, prices: list[Decimal], due: date | None = None) -> Decimal:
    return sum(prices, Decimal(0))


order = UUID(int=1)
invoice.enqueue(str(order), [])  # E
invoice.enqueue(order, ["1.5"])  # E
invoice.enqueue(order, [], "2026-11-27")  # E
cents: int = invoice.enqueue(order, []).result()  # E
job(typed="no")  # E
flow.step(invoice, "6e2e2a4a", [])  # E


@job(batch=10)
def send_all(calls: Calls[str, int]) -> None: ...


send_all.enqueue("a", "b")  # E
send_all.enqueue("a")  # E
send_all("a", 1)  # E
job(batch="ten")  # E
job(batch=10)(add)  # E
job(linger="1s")  # E
