"""`current().checkpoint`: values that one attempt keeps for the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import jobq
from jobq.errors import CodecError, LeaseLostError
from jobq.jobs.context import MAX_CHECKPOINT, Call, Checkpoint
from jobq.jobs.executor import Executor, RunHooks
from jobq.jobs.registry import Registry, job
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message


@pytest.fixture
def inside(registry: Registry, message: Callable[..., Message]) -> Callable[..., Any]:
    """inside(look, keep): the return value of look(context) while a job runs; keep: where checkpoints go."""

    def look_inside(look: Callable[[Any], Any], keep: Checkpoint | None = None) -> Any:
        seen: list[Any] = []
        target = job(name="work", registry=registry)(lambda: seen.append(look(jobq.current())))
        runner = Executor(registry, hooks=RunHooks(checkpoint=keep))
        call = runner.resolve("low", message(target))
        assert isinstance(call, Call)
        ending = runner.run(call)
        assert seen, ending.reason or ending.record
        return seen[0]

    return look_inside


def test_a_checkpoint_is_read_back_as_json_and_kept_once_read(inside: Callable[..., Any]):
    calls: list[tuple[str, ...]] = []

    def keep(*said: str) -> str:
        calls.append(said)
        return said[3] or '{"row":7}'

    def look(context: Any) -> list[Any]:
        found = [context.checkpoint_value, context.checkpoint_value]
        assert context.checkpoint((1, "ü"))
        return [*found, context.checkpoint_value]

    assert inside(look, keep) == [{"row": 7}, {"row": 7}, [1, "ü"]]
    where = ("low", "mid-1", "caller.1.0")
    assert calls == [(*where, ""), (*where, '[1,"ü"]')]


def test_none_is_a_checkpoint_and_without_a_worker_it_lives_in_the_attempt(
    inside: Callable[..., Any],
):
    def look(context: Any) -> list[Any]:
        before = context.checkpoint_value
        return [before, context.checkpoint(3), context.checkpoint_value, context.checkpoint(None)]

    assert inside(look) == [None, True, 3, True]


def test_an_attempt_that_was_overtaken_neither_keeps_nor_reads(inside: Callable[..., Any]):
    def look(context: Any) -> tuple[bool, bool]:
        with pytest.raises(LeaseLostError, match="taken over mid-1"):
            _ = context.checkpoint_value
        return context.checkpoint(1), context.lease_valid()

    assert inside(look, lambda *said: None) == (False, False)


def test_what_json_cannot_carry_or_is_too_long_is_refused(inside: Callable[..., Any]):
    def look(context: Any) -> bool:
        with pytest.raises(CodecError, match="the checkpoint is a set"):
            context.checkpoint({1})
        with pytest.raises(CodecError, match="16,387 bytes; at most 16,384 are allowed"):
            context.checkpoint("x" * (MAX_CHECKPOINT + 1))
        return bool(context.checkpoint("x" * (MAX_CHECKPOINT - 2)))

    assert inside(look)


def test_the_queue_keeps_it_until_the_message_ends(queue: Queue):
    queue.enqueue(b"1", mid="m")
    [held] = queue.dequeue().messages
    assert queue.checkpoint("m", held.token) == ""
    assert queue.checkpoint("m", held.token, '{"row":7}') == '{"row":7}'
    assert queue.progress("m", held.token, "half\x1e")
    assert queue.status("m").progress == "half "
    queue.finish([Ending(mid="m", token=held.token, outcome="crashed", reason="why")])
    [again] = queue.dequeue().messages
    assert queue.checkpoint("m", held.token, "1") is None
    assert queue.checkpoint("m", again.token) == '{"row":7}'
    queue.finish([Ending(mid="m", token=again.token)])
    queue.admin.collect()
    queue.enqueue(b"2", mid="m")
    [third] = queue.dequeue().messages
    assert queue.checkpoint("m", third.token) == ""
