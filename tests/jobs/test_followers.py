"""States and `follow` under hostile bytes, concurrent cancels, a killed server and thousands of followers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import jobq
from jobq.config import ServerSettings
from jobq.errors import JobqError, UnavailableError
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.jobs.states import MAX_ERROR, STATES, State
from jobq.queue import keys
from jobq.queue.queue import Queue
from tests.conftest import answering, binary, start

pytestmark = pytest.mark.one_server
HASHES = (
    "messages", "locks", "tokens", "backoffs", "nattempts", "ncrashes", "nunknowns", "generations", "requeue",
    "options", "progress", "last_dead", "dead_messages",
)  # fmt: skip
HOSTILE = (
    b"", b"\xff\xfe", b"-1", b"9" * 400, b"[" * 50_000, b"nan half", b"1e309 \x1f{", b"\x1e\x1e7\x1f\xff",
    b"jobq-e1 k\n\x00",
)  # fmt: skip
FALSE_ENDS = (
    b"null", b"{", b'{"ok":' + b"[" * 50_000, b'{"end":7}', b'{"error":5,"type":[],"attempt":"x","at":1e400}',
    b'{"end":"cancelled"', b'{"end":"cancelled","attempt":-5,"at":99999999999999999999}',
    b'{"end":"done","attempt":true,"at":true}', b'{"error":"%b"}' % (b"x" * 100_000),
)  # fmt: skip
Act = Callable[..., Any]


@pytest.fixture
def act(registry: Registry, client: jobq.Client) -> Any:
    @job(queue="low", registry=registry, client=client, remember="10m", retries=0)
    def act(what: str) -> str:
        if what == "fail":
            raise ValueError(what)
        return what

    return act


def seen(call: Callable[[], Any]) -> Any:
    """Return the result of a call; None if it raised an error of jobq."""
    with suppress(JobqError):
        return call()
    return None


def check_states(receipt: Any, other: Any) -> None:
    for state in (seen(receipt.state), seen(lambda: asyncio.run(receipt.astate()))):
        assert state is None or (state.word in STATES and len(state.error) <= MAX_ERROR)
    first = seen(lambda: next(receipt.follow()))
    assert first is None or isinstance(first, State)
    # The damage stays with its message.
    assert other.state().word == "queued"


@pytest.mark.parametrize("name", HASHES)
@pytest.mark.parametrize("what", ["running", "fail"])
def test_states_raise_only_errors_of_jobq_when_a_hash_holds_hostile_bytes(
    act: Act, queue: Queue, registry: Registry, redis: Any, name: str, what: str
) -> None:
    executor, key = Executor(registry), keys.key(queue.prefix, name)
    for number, value in enumerate(HOSTILE):
        receipt = act.options(mid=f"m{number}").enqueue(what)  # type: ignore[attr-defined]
        [message] = queue.dequeue(1).messages
        queue.progress(message.mid, message.token, "0.5 half")
        if what == "fail":
            queue.finish([executor.run(executor.resolve("low", message))])
        other = act.enqueue("other")  # type: ignore[attr-defined]
        redis.hset(key, receipt.mid, value)
        if name in ("last_dead", "dead_messages"):
            dead_id = f"{receipt.mid}#x"
            redis.hset(keys.key(queue.prefix, "last_dead"), receipt.mid, dead_id)
            redis.hset(keys.key(queue.prefix, "dead_messages"), dead_id, value)
            redis.zadd(keys.key(queue.prefix, "dead"), {dead_id: 1e300})
        check_states(receipt, other)
        redis.flushdb()


@pytest.mark.parametrize("end", FALSE_ENDS)
def test_state_is_bounded_or_refused_when_another_program_stored_the_end(
    act: Act, queue: Queue, redis: Any, end: bytes
) -> None:
    receipt, other = act.receipt("m"), act.enqueue("other")  # type: ignore[attr-defined]
    redis.rpush(queue.result_key("m"), end)
    check_states(receipt, other)
    state = seen(receipt.state)
    assert state is None or (state.attempt == 0 and state.ended_at is None)
    assert seen(lambda: receipt.result(timeout=1)) is None


def test_state_is_an_error_when_a_key_has_another_type(act: Act, queue: Queue, redis: Any) -> None:
    redis.set(queue.result_key("m"), "x")
    with pytest.raises(JobqError):
        act.receipt("m").state()  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_running", [False, True])
def test_one_of_many_cancels_at_once_succeeds(
    act: Act, queue: Queue, redis: Any, is_running: bool
) -> None:
    receipts = [act.enqueue("a") for _ in range(20)]  # type: ignore[attr-defined]
    if is_running:
        queue.dequeue(20)
    words: Counter[tuple[str, bool]] = Counter()
    begin = threading.Barrier(4)

    def cancel_all() -> None:
        begin.wait()
        for receipt in receipts:
            words[receipt.mid, receipt.cancel()] += 1

    def cancel_many() -> None:
        begin.wait()
        for receipt, word in zip(
            receipts, queue.cancel(*(receipt.mid for receipt in receipts)), strict=True
        ):
            words[receipt.mid, word == "cancelled"] += 1

    threads = [threading.Thread(target=run) for run in (cancel_all, cancel_many) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [words[receipt.mid, True] for receipt in receipts] == [1] * 20
    for receipt in receipts:
        assert receipt.state()[:2] == ("cancelled", int(is_running))
        assert redis.llen(queue.result_key(receipt.mid)) == 1


def test_two_thousand_followers_share_a_few_connections_and_all_see_the_end(
    act: Act, queue: Queue, redis: Any
) -> None:
    receipts = list(act.enqueue_many([("a",)] * 2_000))  # type: ignore[attr-defined]
    followed: Counter[str] = Counter()
    before = redis.info("clients")["connected_clients"]

    async def follow(receipt: Any) -> None:
        async for state in receipt.afollow():
            followed[state.word] += 1

    async def main() -> int:
        tasks = [asyncio.create_task(follow(receipt)) for receipt in receipts]
        while followed["queued"] < len(receipts):
            await asyncio.sleep(0.01)
        connections: int = redis.info("clients")["connected_clients"]
        mids = [receipt.mid for receipt in receipts]
        queue.cancel(*mids)
        await asyncio.gather(*tasks)
        return connections

    connections = asyncio.run(main())
    assert followed == {"queued": 2_000, "cancelled": 2_000}
    assert connections - before <= 3


def test_afollow_goes_on_when_the_server_is_killed_and_started_again(
    registry: Registry, server: Any, short_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.jobs.receipt_calls.POLL_S", 0.001)
    folder, program = short_folder / "followed", binary(server.kind)
    folder.mkdir()

    def started() -> Any:
        assert program is not None
        process = start(
            program, folder, "--port", "0", "--unixsocket", f"{folder}/s", "--appendonly", "yes", "--appendfsync",
            "always",
        )  # fmt: skip
        answering(process, folder, unix_socket_path=f"{folder}/s")
        return process

    process = started()
    settings = ServerSettings(url=f"unix://{folder}/s", patience_s=10)
    client = jobq.connect(settings=settings)
    act = job(queue="low", registry=registry, client=client, name="act", remember="10m")(print)
    receipt = act.enqueue()

    async def follow(words: list[str]) -> None:
        async for state in receipt.afollow():
            words.append(state.word)

    async def main() -> list[str]:
        nonlocal process
        words: list[str] = []
        task = asyncio.create_task(follow(words))
        while not words:
            await asyncio.sleep(0.001)
        process.kill()
        process.wait()
        # It asks a server that isn't there while another is started.
        process = await asyncio.to_thread(started)
        assert await receipt.acancel()
        await task
        process.kill()
        process.wait()
        return words

    try:
        assert asyncio.run(main()) == ["queued", "cancelled"]
        impatient = jobq.connect(settings=ServerSettings(url=settings.url, patience_s=0.1))
        gone = job(queue="low", registry=Registry(), client=impatient, name="act")(print)
        with pytest.raises(UnavailableError):
            next(gone.receipt(receipt.mid).follow())
        impatient.close()
    finally:
        process.kill()
        process.wait()
        client.close()
