"""Connections that die without a word: nothing is closed, and bytes are swallowed.

So it is where a load balancer, a firewall or a NAT forgets a connection that was idle. `Swallowing` is such a place.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from jobq import ConcurrencyLimit, Ending, Flow, Queue, RateLimit, Receipt, job
from jobq.chaos.proxy import HOST, UP, Proxy
from jobq.client import aio, connection
from jobq.client.connection import Client, connect
from jobq.client.numbered_calls import first_try_s
from jobq.client.pipelining import PipelinedCalls, commands
from jobq.config import ServerSettings
from jobq.errors import JobqError, LimitedError, ResultTimeoutError, UnavailableError
from jobq.jobs import receipt_calls
from jobq.jobs.registry import Registry
from jobq.protocols.reliable import waiting
from jobq.protocols.reliable.queue import AsyncReliableQueue, ReliableQueue
from jobq.protocols.rsmq.client import AsyncRsmq, Rsmq
from jobq.protocols.ruby.queues import ResqueQueue, SidekiqQueue
from jobq.topics.messages import TopicBatch
from jobq.topics.reader import AsyncReader, Reader
from jobq.topics.topic import AsyncTopic, Topic

pytestmark = pytest.mark.one_server
#: What a wait sends on a connection of its own.
WAITING = (b"BLMOVE", b"BLPOP", b"XREAD", b"SUBSCRIBE")
PATIENCE_S = 4.0
#: So long each wait lasts that nothing ends; and until a test gives up, which takes no time where none fails.
WAIT_S, END_S = 0.4, 60


class Swallowing(Proxy):
    """While it is `armed`, it goes silent as soon as a wait begins: for old connections, or for new ones too."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.armed: Callable[[], object] | None = None
        self.silent = threading.Event()

    def forward(self, sink: socket.socket, data: bytes, way: str) -> None:
        silence = self.armed
        if silence and way == UP and any(word in data for word in WAITING):
            self.armed = None
            silence()
            self.silent.set()
            return
        super().forward(sink, data, way)


@pytest.fixture
def proxy(server: Any, redis: Any) -> Iterator[Swallowing]:
    between = Swallowing(server.socket)
    yield between
    between.close()


@pytest.fixture
def far(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client by way of the proxy, to which each connection is idle, and which looks often."""
    for module in (connection, aio):
        monkeypatch.setattr(module, "IDLE_S", 0.0)
    monkeypatch.setattr(receipt_calls, "CHECK_EVERY_S", 0.2)
    monkeypatch.setattr(waiting, "LINE_S", 0.2)
    client = connect(
        settings=ServerSettings(
            url=f"redis://{HOST}:{proxy.port}", patience_s=PATIENCE_S, socket_timeout_s=PATIENCE_S
        )
    )
    yield client
    client.close()


def sent(client: Client) -> Receipt[str]:
    """A call whose result is stored, once `stored` did that."""
    return (
        job(queue="low", name="work", registry=Registry(), client=client, result_ttl=60)(work)
        .options(mid="m")
        .enqueue()
    )


def work() -> str:
    return "done"


def flow(client: Client) -> Any:
    """A running flow of one step."""
    made = Flow("report", "1", queue="low", client=client)
    made.step(job(queue="low", name="only", registry=Registry(), result_ttl=60)(work))
    return made.start()


def reader(client: Client) -> Reader:
    made = Topic("log", client).reader("group")
    made.poll()
    return made


def areader(client: Client) -> AsyncReader:
    return AsyncTopic("log", client).reader("group")


def rsmq(client: Client) -> Rsmq:
    made = Rsmq(client)
    if "q" not in made.list_queues():
        made.create_queue("q")
    return made


def arsmq(client: Client) -> AsyncRsmq:
    rsmq(client)
    return AsyncRsmq(client)


CALLS: dict[str, Callable[[Client], object]] = {
    "enqueue": lambda client: Queue("low", client).enqueue(b"v"),
    "enqueue_many": lambda client: Queue("low", client).enqueue_many([b"v", b"w"]),
    "enqueue much": lambda client: Queue("low", client).enqueue_many([bytes(200_000)] * 10),
    "dequeue": lambda client: Queue("low", client).dequeue(),
    "status": lambda client: Queue("low", client).status("m"),
    "counts": lambda client: Queue("low", client).admin.counts(),
    "commands": lambda client: commands(client, "k", [("SET", "k", 1), ("GET", "k")]),
    "Job.enqueue": sent,
    "Flow.start": flow,
    "RateLimit.try_acquire": lambda client: RateLimit("api", "100/m", client=client).try_acquire(),
    "ConcurrencyLimit.slot": lambda client: (
        ConcurrencyLimit("db", 5, client=client).slot(timeout=5).__enter__().leave()
    ),
    "Topic.append": lambda client: Topic("log", client).append(b"v"),
    "Topic.append_many": lambda client: Topic("log", client).append_many([b"v", b"w"]),
    "Reader.poll": lambda client: Topic("log", client).reader("group", commit="auto").poll(),
    "Rsmq.send_message": lambda client: rsmq(client).send_message("q", "v"),
    "Rsmq.receive_message": lambda client: rsmq(client).receive_message("q"),
    "Rsmq.pop_message": lambda client: rsmq(client).pop_message("q"),
    "PipelinedCalls": lambda client: PipelinedCalls(client).run(
        [rsmq(client).requests.send("q", [b"v"], None), rsmq(client).requests.receive("q", 1, None)]
    ),
    "ReliableQueue.push": lambda client: ReliableQueue(client).push("k", "v"),
    "ReliableQueue.pop": lambda client: ReliableQueue(client).pop(1, 0, "k"),
    "SidekiqQueue.push": lambda client: SidekiqQueue("low", client).push("Work"),
    "ResqueQueue.push": lambda client: ResqueQueue("low", client).push("Work"),
}
ACALLS: dict[str, Callable[[Client], Coroutine[Any, Any, object]]] = {
    "Job.aenqueue": lambda client: job(
        queue="low", name="work", registry=Registry(), client=client
    )(work).aenqueue(),
    "RateLimit.atry_acquire": lambda client: RateLimit(
        "api", "100/m", client=client
    ).atry_acquire(),
    "Topic.append": lambda client: AsyncTopic("log", client).append(b"v"),
    "Reader.poll": lambda client: areader(client).poll(),
    "Rsmq.send_message": lambda client: AsyncRsmq(client).send_message("q", "v"),
    "ReliableQueue.push": lambda client: AsyncReliableQueue(client).push("k", "v"),
    "SidekiqQueue.apush": lambda client: SidekiqQueue("low", client).apush("Work"),
}


@pytest.mark.parametrize("call", CALLS)
def test_first_call_succeeds_when_its_connection_has_died(far, proxy, call):
    CALLS[call](far)
    proxy.freeze()
    CALLS[call](far)


@pytest.mark.parametrize("call", ACALLS)
def test_first_awaited_call_succeeds_when_its_connection_has_died(far, proxy, call):
    async def twice() -> None:
        await ACALLS[call](far)
        proxy.freeze()
        await asyncio.gather(ACALLS[call](far), ACALLS[call](far))
        aio.async_client(far).close()

    rsmq(far)
    asyncio.run(twice())


def test_call_that_may_not_be_repeated_is_made_once_when_its_connection_has_died(far, proxy):
    rsmq(far).send_message("q", "v")
    proxy.freeze()
    rsmq(far).send_message("q", "w")
    assert rsmq(far).get_queue_attributes("q").msgs == 2


def test_reply_to_a_call_that_may_not_be_repeated_is_awaited_longer(far, proxy):
    """Half the patience is over before the server answers: a call that may be repeated would be."""
    far.socket_timeout_s = END_S
    rsmq(far).send_message("q", "v")
    far.close()  # for connections with the new timeout
    far.topology.timeout_s = END_S
    rsmq(far).send_message("q", "w")
    proxy.hold()
    threading.Timer(first_try_s(PATIENCE_S, END_S) + 0.1, proxy.release).start()
    assert rsmq(far).send_message("q", "x")
    assert rsmq(far).get_queue_attributes("q").msgs == 3


WAITS: dict[str, Callable[[Client, float | None], object]] = {
    "Receipt.result": lambda client, timeout: sent(client).result(timeout),
    "FlowRun.wait": lambda client, timeout: flow(client).wait(timeout),
    "FlowRun.result": lambda client, timeout: flow(client).result("only", timeout),
    "ConcurrencyLimit.slot": lambda client, timeout: held(client).slot(timeout).__enter__(),
    "Reader.poll": lambda client, timeout: reader(client).poll(block=timeout or 3600),
    "Rsmq.receive_message": lambda client, timeout: rsmq(client).receive_message(
        "q", wait=timeout or 3600
    ),
    "ReliableQueue.pop": lambda client, timeout: ReliableQueue(client).pop(1, ms(timeout), "k"),
    "ReliableQueue.recover": lambda client, timeout: ReliableQueue(client).recover(
        "k", 1, 0, block=ms(timeout)
    ),
}
AWAITS: dict[str, Callable[[Client, float | None], Coroutine[Any, Any, object]]] = {
    "Receipt.aresult": lambda client, timeout: sent(client).aresult(timeout),
    "FlowRun.await_end": lambda client, timeout: flow(client).await_end(timeout),
    "FlowRun.aresult": lambda client, timeout: flow(client).aresult("only", timeout),
    "AsyncReader.poll": lambda client, timeout: areader(client).poll(block=timeout or 3600),
    "AsyncRsmq.receive_message": lambda client, timeout: arsmq(client).receive_message(
        "q", wait=timeout or 3600
    ),
    "AsyncReliableQueue.pop": lambda client, timeout: AsyncReliableQueue(client).pop(
        1, ms(timeout), "k"
    ),
}


def ms(timeout: float | None) -> int:
    return -1 if timeout is None else round(timeout * 1000)


def held(client: Client) -> ConcurrencyLimit:
    """Slots of which nobody gets one."""
    slots = ConcurrencyLimit("db", 1, client=client)
    slots.hold(600)
    return slots


class Waiting:
    """A wait in a thread of its own, which nobody waits for if it never ends."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait
        self.outcome: object = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._wait()
        except JobqError as error:
            self.outcome = error

    def has_ended(self) -> bool:
        self._thread.join(END_S)
        return not self._thread.is_alive()


def begun(name: str, far: Client, timeout: float | None) -> Waiting:
    """The wait of this name, in either kind."""
    if name in WAITS:
        return Waiting(lambda: WAITS[name](far, timeout))
    return Waiting(lambda: asyncio.run(AWAITS[name](far, timeout)))  # type: ignore[arg-type]


@pytest.mark.parametrize("silence", ["freeze", "hold"])
@pytest.mark.parametrize("name", [*WAITS, *AWAITS])
def test_wait_ends_at_its_timeout_when_its_connection_dies(far, proxy, name, silence):
    """freeze: the connections that there are; hold: new ones too."""
    # A busy machine may take longer to make another connection than the wait lasts.
    for wait_s in (WAIT_S, 5 * WAIT_S, 25 * WAIT_S):
        proxy.armed = getattr(proxy, silence)
        wait = begun(name, far, wait_s)
        assert wait.has_ended()
        if silence == "hold" or not isinstance(wait.outcome, UnavailableError):
            break
    over = (ResultTimeoutError, LimitedError, UnavailableError)[: 2 if silence == "freeze" else 3]
    assert not wait.outcome or wait.outcome == TopicBatch([]) or isinstance(wait.outcome, over)


ENDINGS: dict[str, Callable[[Client], object]] = {
    "Receipt.result": lambda client: stored(client),
    "Receipt.aresult": lambda client: stored(client),
    "Reader.poll": lambda client: Topic("log", client).append(b"v"),
    "AsyncReader.poll": lambda client: Topic("log", client).append(b"v"),
    "Rsmq.receive_message": lambda client: Rsmq(client).send_message("q", "v"),
    "AsyncRsmq.receive_message": lambda client: Rsmq(client).send_message("q", "v"),
    "ReliableQueue.pop": lambda client: ReliableQueue(client).push("k", "v"),
    "AsyncReliableQueue.pop": lambda client: ReliableQueue(client).push("k", "v"),
}


def stored(client: Client) -> None:
    """Store the result of `sent`, as a worker does."""
    [message] = (queue := Queue("low", client)).dequeue().messages
    ending = Ending(mid=message.mid, token=message.token, result=b'{"ok":"done"}', result_ttl=60)
    queue.finish([ending])


@pytest.mark.parametrize("name", ENDINGS)
def test_wait_without_a_timeout_goes_on_when_its_connection_dies(far, proxy, client, name):
    proxy.armed = proxy.freeze
    wait = begun(name, far, None)
    assert proxy.silent.wait(END_S)

    ENDINGS[name](client)

    assert wait.has_ended()
    assert wait.outcome and not isinstance(wait.outcome, JobqError)


def test_loop_over_a_reader_goes_on_when_its_connection_dies(far, proxy, client):
    following = reader(far)
    messages = iter(following)
    proxy.armed = proxy.freeze
    wait = Waiting(lambda: next(messages))
    assert proxy.silent.wait(END_S)

    Topic("log", client).append(b"v")

    assert wait.has_ended()
    assert wait.outcome.content == b"v"


def test_cancelled_wait_for_a_result_ends_and_keeps_no_thread(far, proxy):
    async def cancelled() -> None:
        waiting = asyncio.ensure_future(sent(far).aresult())
        while not proxy.silent.is_set():
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    proxy.armed = proxy.freeze
    # `run` joins the threads of the loop: it would never end.
    assert Waiting(lambda: asyncio.run(cancelled())).has_ended()


@pytest.mark.parametrize(
    ("patience_s", "socket_timeout_s", "seconds"),
    [
        (2, 2.5, 1),
        (10, 5, 5),
        (0, 5, 5),
        (0.25, 5, 5),
        (0.3, 5, 0.25),
        (1e9, 2.5, 2.5),
        (2, 0.1, 0.1),
    ],
)
def test_first_try_leaves_time_for_another_when_the_patience_allows_one(
    patience_s, socket_timeout_s, seconds
):
    assert first_try_s(patience_s, socket_timeout_s) == seconds
