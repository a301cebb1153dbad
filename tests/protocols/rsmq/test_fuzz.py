"""Whatever arguments and keys a script of RSMQ is given: an error changed nothing, and messages are handed out."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.functions import scripts
from jobq.protocols.rsmq import Rsmq
from tests import hostile
from tests.hostile import Call, Raw
from tests.protocols.rsmq.conftest import BEGINNING_US

SCRIPTS = {script.name: script for script in scripts() if script.area == "rsmq"}
GO_ID, PHANTOM = "ABCDEFGHIJKLMNOPQRSTUV", "hochb5vvsg0123456789abcdefghijkl"


@pytest.fixture
def good(rsmq: Rsmq, redis: Any) -> dict[str, Call]:
    """A good call of each script, on two queues with messages of every kind."""
    rsmq.create_queue("q")
    rsmq.create_queue("to")
    ids = rsmq.send_messages("q", ["a", "b", "c", "d"])
    held = rsmq.receive_messages("q", 2)
    rsmq.send_message("q", "later", delay=60)
    redis.zadd("rsmq:q", {GO_ID: 1, PHANTOM: 1})
    redis.hset("rsmq:q:Q", mapping={GO_ID: "from go", f"{PHANTOM}:rc": "1"})
    own, listed, now = ("rsmq:q", "rsmq:q:Q"), ("rsmq:q", "rsmq:q:Q", "rsmq:QUEUES"), BEGINNING_US
    done = (held[0].id, 1, ids[2], "")
    return {
        "create": Call(("rsmq:new", "rsmq:new:Q", "rsmq:QUEUES"), (now, "new", 30, 0, 65536), (0, 2, 3, 4)),
        "delete": Call(own, done, (1, 3)),
        "describe": Call(own, (now,), (0,)),
        "repair": Call(listed, (now, "q", "0", "0", 100), (0, 2, 3, 4)),
        "list": Call(("rsmq:QUEUES",)),
        "unlist": Call(("rsmq:QUEUES",), ("q",)),
        "move": Call((*own, "rsmq:to", "rsmq:to:Q"), (now, "rsmq:rt:to", *done), (0, 3, 5)),
        "next": Call(own, (now, 30, 3, *done), (0, 1, 2, 4, 6)),
        "peek": Call(own, (now, "all", 0, 10), (0, 2, 3)),
        "pop": Call(own, (now, 2), (0, 1)),
        "purge": Call(own, (3,), (0,)),
        "receive": Call(own, (now, 30, 3), (0, 1, 2)),
        "remove": Call(listed, ("q",)),
        "send": Call(own, (now, 5, "rsmq:rt:q", "A" * 22, "e", "B" * 22, "f"), (0, 1)),
        "set": Call(own, (now, 10, 5, 2048), (0, 1, 2, 3)),
        "visibility": Call(own, (now, 5, *done), (0, 1, 3, 5)),
    }  # fmt: skip


@pytest.fixture
def raw(redis: Any) -> Raw:
    return Raw(redis)


(
    test_every_script_has_a_good_call,
    test_script_changes_nothing_when_it_refuses_its_arguments_or_keys,
    test_no_script_raises_after_a_write_when_stored_values_are_corrupt,
) = hostile.tests_of(SCRIPTS)


def test_messages_are_received_whatever_stands_beside_them(raw, good, rsmq, redis):
    whole = raw.state()
    for one in list(hostile.corruptions_of(redis)):
        one.make()
        rsmq.create_queue("sane")
        sent = rsmq.send_message("sane", "after all")
        assert rsmq.receive_message("sane").id == sent, one.what
        raw.put_back(whole)
