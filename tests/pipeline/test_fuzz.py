"""Whatever arguments and keys a script of the pipeline is given: an error changed nothing."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.functions import scripts
from jobq.pipeline.writing.delivery import packed
from jobq.pipeline.writing.rows import RowMessage
from jobq.queue import keys
from jobq.queue.queue import Queue
from tests import hostile
from tests.hostile import Call, Raw

SCRIPTS = {script.name: script for script in scripts() if script.area == "pipeline"}
PREFIX, NOW = "jobq:{low}:", 1_700_000_100_000
BATCH = [RowMessage("low", when, f"m{when}", b"{}") for when in ("", "d60000", "a1800000000000")]


@pytest.fixture
def good(queue: Queue, kill_message: Any) -> dict[str, Call]:
    """A good call of each script, on a queue with something in most places."""
    queue.admin.events_level("all")
    for n in range(3):
        kill_message(queue, f"dead{n}")
    queue.enqueue_many([("ready", b"v"), ("ready2", b"v")])
    queue.enqueue(b"v", mid="due", delay=3_600, until=1)
    queue.cancel("ready")
    args = {
        "dead": ((0, "", NOW * 2, 10), (0, 2, 3)),
        "deliver": (("fuzz", 7, NOW, 1_000, "", packed(BATCH)), (1, 3)),
        "messages": (("0", 10, "1", NOW), (1,)),
        "walk": (("0-0", "+", 10), (2,)),
    }
    return {
        name: Call(tuple(keys.key(PREFIX, key, "fuzz") for key in SCRIPTS[name].keys), *given)
        for name, given in args.items()
    }


@pytest.fixture
def kill_message() -> Any:
    """kill_message(queue, mid): enqueue a message and let it die."""
    from jobq.queue.types import Ending

    def kill(queue: Queue, mid: str) -> None:
        queue.enqueue(b"v", mid=mid)
        [message] = queue.dequeue().messages
        queue.finish([Ending(mid=mid, token=message.token, outcome="dead", reason="why")])

    return kill


@pytest.fixture
def raw(redis: Any) -> Raw:
    return Raw(redis)


(
    test_every_script_has_a_good_call,
    test_script_changes_nothing_when_it_refuses_its_arguments_or_keys,
    test_no_script_raises_after_a_write_when_stored_values_are_corrupt,
) = hostile.tests_of(SCRIPTS)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b[:-1], lambda b: b + b"x", lambda b: b[8:], lambda b: b[:8], lambda b: b"99999999" + b[8:],
        lambda b: b.replace(b"d60000", b"d6000x"), lambda b: b.replace(b"a18", b"axx"),
        lambda b: b.replace(b"md", b"\xff\xff"), lambda b: b.replace(b"md", b"m\n"),
    ],
)  # fmt: skip
def test_batch_that_is_none_is_refused_whole(raw, good, spoil):
    before, batch = raw.digest(), spoil(packed(BATCH))
    assert batch != packed(BATCH)
    call = good["deliver"]
    assert not raw(SCRIPTS["deliver"], call.keys, (*call.args[:-1], batch))
    assert raw.digest() == before
