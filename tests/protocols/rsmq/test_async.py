"""The async calls are the plain ones, and those that are made together travel together."""

from __future__ import annotations

import asyncio
import inspect
import signal
from typing import Any

import pytest

from jobq.client.aio import AsyncClient
from jobq.errors import Dead, Retry, UnavailableError
from jobq.protocols.rsmq import (
    AsyncConsumer,
    AsyncRsmq,
    Consumed,
    InvalidFormatError,
    MessageTooLongError,
    MissingParameterError,
    QueueNotFoundError,
    Repaired,
    Rsmq,
    RsmqMessage,
)


@pytest.fixture
def plain(client: Any) -> Rsmq:
    rsmq = Rsmq(client, realtime=True)
    rsmq.create_queue("q", vt=30)
    return rsmq


@pytest.fixture
def rsmq(client: Any, plain: Rsmq) -> AsyncRsmq:
    """A queue `q` is there."""
    return AsyncRsmq(client, realtime=True)


def test_async_methods_are_those_of_the_plain_calls_with_their_parameters():
    plain = {name: one for name, one in vars(Rsmq).items() if name[0] != "_" and callable(one)}
    other = {name: one for name, one in vars(AsyncRsmq).items() if name[0] != "_" and callable(one)}
    assert set(plain) - {"channel"} == set(other)
    for name in set(other) - {"consume"}:
        assert list(inspect.signature(plain[name]).parameters) == list(
            inspect.signature(other[name]).parameters
        )
        assert inspect.iscoroutinefunction(other[name]) is (name != "close")


def test_every_async_call_does_what_the_plain_one_does(rsmq, plain):
    async def calls() -> None:
        assert await rsmq.create_queue("n", vt=5) == 1
        assert await rsmq.list_queues() == ["n", "q"]
        assert (await rsmq.set_queue_attributes("n", delay=0)).vt == 5
        sent = await rsmq.send_message("n", "x")
        received = await rsmq.receive_message("n")
        assert received is not None and received.id == sent
        assert await rsmq.change_message_visibility("n", sent, 0, receipt=1) is True
        assert await rsmq.change_messages_visibility("n", [received], 0) == [True]
        assert [one.id for one in await rsmq.peek("n")] == [sent]
        assert await rsmq.counts("n") == (1, 0)
        assert await rsmq.delete_message("n", sent, receipt=1) is True
        ids = await rsmq.send_messages("n", ["a", "b", "c"])
        popped = await rsmq.pop_message("n")
        assert popped is not None and popped.id == ids[0]
        [b] = await rsmq.receive_messages("n", 1)
        assert await rsmq.move_messages("n", "q", [b]) == [True]
        assert await rsmq.redrive("n", "q") == 1
        assert await rsmq.delete_messages("n", [b]) == [False]
        assert await rsmq.purge("q") == 2
        assert await rsmq.repair("n") == Repaired(0, 0)
        assert await rsmq.delete_queue("n") == 1

    asyncio.run(calls())


def test_async_errors_are_those_of_the_plain_calls(rsmq):
    async def calls() -> None:
        with pytest.raises(QueueNotFoundError):
            await rsmq.send_message("unknown", "x")
        with pytest.raises(MissingParameterError):
            await rsmq.send_message("", "x")
        with pytest.raises(MessageTooLongError):
            await rsmq.send_messages("q", ["x"] * 1_500 + ["x" * 70_000])
        assert await rsmq.counts("q") == (0, 0)

    asyncio.run(calls())


def test_calls_made_together_take_few_round_trips_and_keep_their_order(rsmq, plain, redis):
    async def calls() -> list[str]:
        return await asyncio.gather(*(rsmq.send_message("q", str(n)) for n in range(1_500)))

    redis.config_resetstat()
    ids = asyncio.run(calls())
    assert redis.info("stats")["total_reads_processed"] < 200
    assert ids == sorted(ids)
    assert [one.message for one in plain.receive_messages("q", 1_000)] == [
        str(n) for n in range(1_000)
    ]


@pytest.mark.parametrize(
    ("wrong", "error"), [("unknown", QueueNotFoundError), ("\ud800", InvalidFormatError)]
)
def test_one_call_s_error_leaves_its_companions_alone(rsmq, wrong, error):
    async def calls() -> list[Any]:
        sends = (rsmq.send_message(name, "x") for name in ("q", wrong, "q"))
        return await asyncio.gather(*sends, return_exceptions=True)

    first, second, third = asyncio.run(calls())
    assert isinstance(second, error)
    assert first < third


def test_cancelled_call_leaves_the_others_alone(rsmq):
    async def calls() -> int:
        await rsmq.counts("q")  # connects: from now on calls are sent at once
        tasks = [asyncio.create_task(rsmq.send_message("q", "x")) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, str) for one in done] == [True, False, True]
        return sum(await rsmq.counts("q"))

    assert asyncio.run(calls()) == 3


def test_consume_handles_so_many_at_a_time(rsmq, plain):
    plain.send_messages("q", [str(number) for number in range(40)])

    async def consume() -> tuple[Consumed, set[str]]:
        together, seen = asyncio.Barrier(8), set[str]()

        async def handle(message: RsmqMessage) -> None:
            await together.wait()
            seen.add(message.message)

        return await rsmq.consume("q", handle, concurrency=8, burst=True), seen

    counted, seen = asyncio.run(consume())
    assert counted == Consumed(done=40)
    assert len(seen) == 40
    assert plain.counts("q") == (0, 0)


@pytest.mark.parametrize(
    ("error", "counted", "left"),
    [(Retry(after=100), Consumed(failed=1), (0, 1)), (Dead("no"), Consumed(dead=1), (0, 0)),
     (ValueError(), Consumed(dead=1), (0, 0))],
)  # fmt: skip
def test_consume_settles_what_failed(rsmq, plain, error, counted, left):
    plain.send_message("q", "x")

    async def handle(message: RsmqMessage) -> None:
        raise error

    most = 1 if isinstance(error, ValueError) else None
    assert asyncio.run(rsmq.consume("q", handle, burst=True, max_receives=most)) == counted
    assert plain.counts("q") == left
    if counted.dead:
        assert plain.counts("q-dead") == (1, 0)


def test_consume_tells_apart_what_somebody_else_received(rsmq, plain):
    plain.send_message("q", "x")

    async def slow(message: RsmqMessage) -> None:
        plain.change_message_visibility("q", message.id, 0)
        plain.receive_message("q")

    assert asyncio.run(rsmq.consume("q", slow, burst=True)) == Consumed(lost=1)


def test_heartbeat_keeps_a_message_hidden_longer_than_its_timeout(rsmq, plain):
    plain.send_message("q", "x")

    async def long(message: RsmqMessage) -> None:
        began = plain.peek("q", "all")[0].visible_at
        async with asyncio.timeout(120):
            while plain.peek("q", "all")[0].visible_at < began + 1_000:
                await asyncio.sleep(0.02)

    assert asyncio.run(rsmq.consume("q", long, burst=True, vt=1)) == Consumed(done=1)


def test_cancelled_consumer_gives_back_what_it_held(rsmq, plain):
    plain.send_messages("q", ["a", "b"])

    async def consume() -> None:
        began = asyncio.Barrier(3)

        async def handle(message: RsmqMessage) -> None:
            await began.wait()
            await asyncio.Event().wait()

        task = asyncio.create_task(rsmq.consume("q", handle, concurrency=2))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(consume())
    assert plain.counts("q") == (2, 0)


def test_stop_ends_a_waiting_consumer_and_lets_handlers_end(rsmq, plain, redis):
    plain.send_messages("q", ["a", "b", "c"])

    async def consume() -> Consumed:
        async def handle(message: RsmqMessage) -> None:
            consumer.stop()

        consumer = AsyncConsumer(rsmq, "q", handle)
        first = await consumer.run()
        assert first == Consumed(done=1)
        idle = AsyncConsumer(rsmq, "q", handle, concurrency=2, burst=False)
        plain.purge("q")
        running = asyncio.create_task(idle.run())
        while not redis.pubsub_numsub("rsmq:rt:q")[0][1]:
            await asyncio.sleep(0.005)
        idle.stop()
        return await running

    assert asyncio.run(consume()) == Consumed()


def test_signal_stops_a_consumer_and_its_handlers_are_put_back(rsmq, plain):
    plain.send_messages("q", ["a", "b"])
    before = signal.getsignal(signal.SIGTERM)

    async def handle(message: RsmqMessage) -> None:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)

    counted = asyncio.run(rsmq.consume("q", handle))
    assert counted.done >= 1
    assert sum(plain.counts("q")) == 2 - counted.done
    assert signal.getsignal(signal.SIGTERM) is before


def test_consumer_ends_when_its_queue_is_deleted(rsmq, plain):
    plain.send_message("q", "x")

    async def handle(message: RsmqMessage) -> None:
        plain.delete_queue("q")

    with pytest.raises(QueueNotFoundError):
        asyncio.run(rsmq.consume("q", handle))


@pytest.mark.parametrize(
    ("script", "error", "counted"),
    [("delete", None, Consumed(done=1)), ("move", Dead(), Consumed(dead=1))],
)
def test_message_is_counted_as_settled_when_the_reply_was_lost(
    rsmq, plain, monkeypatch, script, error, counted
):
    ask, lost = AsyncClient.ask, []

    async def lossy(self: AsyncClient, call: Any) -> Any:
        outcome = await ask(self, call)
        if call.script.name == script and not lost:
            lost.append(outcome)
            raise UnavailableError("the reply was lost")
        return outcome

    async def handle(_: RsmqMessage) -> None:
        if error:
            raise error

    monkeypatch.setattr(AsyncClient, "ask", lossy)
    plain.send_message("q", "x")
    assert asyncio.run(rsmq.consume("q", handle, burst=True)) == counted
    assert plain.counts("q") == (0, 0)
