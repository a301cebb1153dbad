"""The same for asyncio."""

from __future__ import annotations

import asyncio

import pytest

from jobq.topics import (
    AsyncReader,
    AsyncTopic,
    AsyncTopicGroup,
    OutOfRangeError,
    Reader,
    Record,
    Topic,
    TopicGroup,
)


@pytest.fixture
def orders(client):
    return AsyncTopic("orders", client)


def test_verbs_do_what_their_twins_do(orders):
    async def life():
        assert await orders.append(b"1", key="k", headers={"h": "v"}) == 1
        assert await orders.append_many([b"2", Record(b"3")]) == [2, 3]
        group = orders.group("g")
        assert await group.subscribe(2)
        reader = orders.reader("g")
        batch = await reader.poll()
        assert [m.index for m in batch.messages] == [2, 3]
        await reader.extend()
        assert await reader.commit(batch.messages[0]) == 2
        await reader.release()
        await group.pause()
        assert (await group.lag()).paused
        await group.resume()
        await group.set_out_of_range("latest")
        assert (await group.lag()).out_of_range == "latest"
        assert await orders.groups() == ["g"]
        assert await group.seek("earliest") == 1
        assert [m.index async for m in orders.read()] == [1, 2, 3]
        assert (await orders.get(1)).key == "k"
        assert await orders.find(0) == 1
        assert (await orders.set_limits(max_count=2)).max_count == 2
        assert (await orders.limits()).max_count == 2
        assert await orders.trim() == 2
        assert await orders.compact() == 3
        assert (await orders.describe()).messages == 2
        with pytest.raises(OutOfRangeError):
            [m async for m in orders.read(1)]
        assert await group.unsubscribe()
        await orders.delete()

    asyncio.run(life())


@pytest.mark.parametrize(
    ("twin", "one", "own"),
    # Verbs of a person who mends damage have no twin.
    [(AsyncTopic, Topic, {"forget_group", "strange_groups"}), (AsyncTopicGroup, TopicGroup, set()),
     # What iteration and cancelling are made of, and what tells of the reader.
     (AsyncReader, Reader, {"begin", "end_of_block", "finish", "interrupted", "take_back"})],
)  # fmt: skip
def test_every_verb_has_a_twin(twin, one, own):
    verbs = {name for name in vars(one) if not name.startswith("_")}
    assert verbs - own <= set(dir(twin))


def test_iteration_ends_with_its_block_and_commits_what_is_done(orders):
    async def life():
        await orders.append_many([b"%d" % i for i in range(1, 6)])
        async with orders.reader("g", commit="auto") as reader:
            async for message in reader:
                if message.index == 4:
                    break
        assert (await orders.group("g").lag()).settled == 3

    asyncio.run(life())


def test_many_readers_wait_on_one_loop(orders):
    async def life():
        readers = [orders.reader(f"g{i}") for i in range(5)]
        polling = [asyncio.create_task(reader.poll(block=60)) for reader in readers]
        await orders.append(b"now")
        return [batch.messages[0].content for batch in await asyncio.gather(*polling)]

    assert asyncio.run(life()) == [b"now"] * 5


def test_cancelled_wait_ends_at_once_and_the_reader_works_on(orders, client):
    async def life():
        reader = orders.reader("g")
        polling = asyncio.create_task(reader.poll(block=3600))
        while b"xread" not in client.command("CLIENT", "LIST"):
            await asyncio.sleep(0.01)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        await orders.append(b"after")
        return (await reader.poll(block=60)).messages[0].content

    assert asyncio.run(life()) == b"after"


def cancelled_poll(reader):
    async def poll():
        polling = asyncio.create_task(reader.poll())
        await asyncio.sleep(0)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling

    return poll()


def test_cancelled_poll_gives_back_what_it_was_just_handed(orders):
    async def life():
        await orders.append(b"x")
        await orders.group("g").subscribe()
        await cancelled_poll(orders.reader("g"))
        return (await orders.reader("g").poll()).messages

    assert len(asyncio.run(life())) == 1


def test_next_poll_has_what_a_cancelled_one_was_handed_when_reading_settles(orders):
    async def life():
        await orders.append_many([b"1", b"2", b"3"])
        await orders.group("g").subscribe()
        reader = orders.reader("g", commit="read")
        await cancelled_poll(reader)
        assert (await orders.group("g").lag()).settled == 3
        return [(await reader.poll(2)).messages, (await reader.poll(2)).messages]

    first, second = asyncio.run(life())
    assert [m.content for m in first] == [b"1", b"2"]
    assert [m.content for m in second] == [b"3"]


def test_closing_tells_of_what_nobody_saw(orders, caplog):
    async def life():
        await orders.append_many([b"1", b"2"])
        await orders.group("g").subscribe()
        async with orders.reader("g", commit="read") as reader:
            await cancelled_poll(reader)

    asyncio.run(life())
    assert "the reader was closed before it returned messages 1 to 2" in caplog.text


def test_poll_cancelled_twice_gives_back_what_it_was_handed_and_the_reader_works_on(orders):
    async def life():
        await orders.append(b"x")
        await orders.group("g").subscribe()
        reader = orders.reader("g")
        polling = asyncio.create_task(reader.poll())
        await asyncio.sleep(0)
        polling.cancel()
        await asyncio.sleep(0)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        return (await reader.poll(block=60)).messages

    assert len(asyncio.run(life())) == 1


def test_interrupt_ends_an_iteration(orders, client):
    async def life():
        await orders.append(b"1")
        reader, seen = orders.reader("g", commit="auto"), []
        async for message in reader:
            seen.append(message.content)
            reader.interrupt()
        await reader.close()
        return seen

    assert asyncio.run(life()) == [b"1"]
    assert orders.blocking.group("g").lag(exact=True).messages == 0
