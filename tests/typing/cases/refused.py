"""What type checkers must refuse: every line marked E, and no other."""

from __future__ import annotations

import jobq
from jobq import Receipt, job
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
