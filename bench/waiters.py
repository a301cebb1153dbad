"""Cost of waiting for results on an event loop: delay of its other callbacks while 500 coroutines wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import jobq
from bench.server import private_server
from bench.stage import Row
from jobq import Ending, Queue

WAITERS, SECONDS = 500, 5.0


def waiters(_: str) -> Iterator[Row]:
    """Measure 500 waits for results that arrive one by one within 5 s."""
    with private_server() as client:
        work = jobq.job(queue="waiters", name="work", client=client, result_ttl=60)(_work)
        before = _connections(client)
        finished, done, delay_s, connections = asyncio.run(_waits(work, client))
        late_s = sorted(at - finished[mid] for mid, at in done.items())
        yield "500 waits, longest delay of the loop", 1000 * delay_s[0], "ms"
        yield "500 waits, longest delay of the loop in CPU", 1000 * delay_s[1], "ms"
        yield "500 waits, connections", connections - before, ""
        yield "500 waits, result to waiter, median", 1000 * late_s[len(late_s) // 2], "ms"
        yield "500 waits, result to waiter, longest", 1000 * late_s[-1], "ms"


async def _waits(
    work: jobq.Job[[], None], client: jobq.Client
) -> tuple[dict[str, float], dict[str, float], tuple[float, float], int]:
    receipts = await work.aenqueue_many([()] * WAITERS)
    finished: dict[str, float] = {}
    done: dict[str, float] = {}
    delays, cpu = [0.0], [0.0]

    async def wait(receipt: jobq.Receipt[None]) -> None:
        await receipt.aresult(timeout=60)
        done[receipt.mid] = time.monotonic()

    async def measure() -> None:
        while True:
            before, cpu_before = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.005)
            delays.append(time.monotonic() - before - 0.005)
            # Unlike the time, it is the same on a busy machine.
            cpu.append(time.thread_time() - cpu_before)

    measuring = asyncio.create_task(measure())
    waiting = [asyncio.create_task(wait(receipt)) for receipt in receipts]
    finishing = threading.Thread(target=_finish, args=(client, finished))
    finishing.start()
    await asyncio.sleep(SECONDS / 2)
    connections = _connections(client)
    await asyncio.gather(*waiting)
    measuring.cancel()
    finishing.join()
    return finished, done, (max(delays), max(cpu)), connections


def _finish(client: jobq.Client, finished: dict[str, float]) -> None:
    queue = Queue("waiters", client)
    for _ in range(WAITERS):
        [message] = queue.dequeue(1, lease=60).messages
        ending = Ending(mid=message.mid, token=message.token, result=b'{"ok":null}', result_ttl=60)
        finished[message.mid] = time.monotonic()
        queue.finish([ending])
        time.sleep(SECONDS / WAITERS)


def _work() -> None:
    pass


def _connections(client: jobq.Client) -> int:
    return len(client.command("CLIENT", "LIST").splitlines())
