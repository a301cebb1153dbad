"""T5 for the other protocols' queues: `jobq acl rsmq` and `jobq acl reliable` allow their whole use, and no more."""

from __future__ import annotations

import shlex
import threading

import pytest

from jobq.cli import main
from jobq.errors import ScriptError
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.rsmq import Rsmq
from jobq.queue.queue import Queue
from tests.protocols.rsmq.test_declared_keys import every_call
from tests.security.logins import logins
from tests.security.test_t5_rights import DENIED

ROLES = ("rsmq", "reliable")


@pytest.fixture
def user(server, redis, client, capsys):
    """user("rsmq", "--queues", "mails"): a client of a user made by `jobq acl rsmq …`; functions are there."""
    with logins(server, redis, client, capsys) as login:
        yield login


@pytest.mark.parametrize(
    "words", [(), ("--queues", "q,dead"), ("--ns", "{other}"), ("--ns", "other", "--queues", "q,dead")]
)  # fmt: skip
def test_user_of_rsmq_may_make_every_call_of_it_and_wait(user, redis, words):
    ns = words[1] if words[:1] == ("--ns",) else "rsmq"
    rsmq = Rsmq(user("rsmq", *words), ns=ns, realtime=True)
    every_call(rsmq)
    rsmq.create_queue("q")
    found = []
    waiting = threading.Thread(target=lambda: found.append(rsmq.receive_message("q", wait=30)))
    waiting.start()
    while not redis.pubsub_numsub(f"{ns}:rt:q")[0][1]:
        threading.Event().wait(0.01)
    rsmq.send_message("q", "x")
    waiting.join()
    assert found[0].message == "x"
    rsmq.send_message("q", "y")
    counted = rsmq.consume("q", lambda _: None, burst=True, dead_letter="dead", max_receives=1)
    assert counted.done == 1
    assert not redis.execute_command("ACL", "LOG")


@pytest.mark.parametrize("words", [(), ("--queues", "q,{shop}mails,{shop}*"), ("--ns", "other")])
def test_user_of_reliable_may_make_every_call_of_it_and_wait(user, redis, words):
    rq = ReliableQueue(user("reliable", *words), "other" if words[:1] == ("--ns",) else "reliable")
    for name in ("q", "{shop}mails", "{shop}*"):
        ids = rq.push(name, *"abcdef")
        rq.configure(name, max_deliveries=2)
        assert len(rq.pop(5, 0, name, token="me", recover_after=1)) == 5
        assert rq.extend(name, ids[0], token="me") == rq.ack(name, ids[0], token="me")
        assert rq.nack(name, ids[1], token="me") and rq.release(name, ids[2], token="me")
        assert len(rq.recover(name, 1, 0)) == 1
        rq.nack(name, *ids)
        assert rq.dead(name) and rq.inspect(name, 0, 1) and rq.info(name) and rq.length(name)
        assert rq.revive(name, rq.dead(name)[0].id)
        rq.purge(name, *ids)
        rq.clear(name)
        found = []
        waiting = threading.Thread(target=lambda: found.append(rq.pop(1, 30_000, name)))  # noqa: B023
        waiting.start()
        while not redis.info("clients")["blocked_clients"]:
            threading.Event().wait(0.01)
        rq.push(name, "late")
        waiting.join()
        assert found[0][0].content == b"late"
        assert rq.delete(name) == 1
    assert not redis.execute_command("ACL", "LOG")


@pytest.mark.parametrize("role", ROLES)
def test_user_may_nothing_beyond(user, redis, role):
    user(role)
    replies = {
        line: redis.execute_command("ACL", "DRYRUN", "shop", *shlex.split(line)) for line in DENIED
    }
    assert [line for line, reply in replies.items() if reply in (b"OK", True)] == []


def test_user_of_one_queue_reaches_no_other(user, client):
    Rsmq(client).create_queue("other")
    ReliableQueue(client).push("other", "x")
    rsmq = Rsmq(user("rsmq", "--queues", "q*"))
    for call in (
        lambda: rsmq.receive_message("other"),
        lambda: rsmq.create_queue("qq"),
        lambda: rsmq.delete_queue("other"),
        lambda: Queue("q", rsmq.client).enqueue(b"{}"),
    ):
        with pytest.raises(ScriptError, match="permission"):
            call()
    rq = ReliableQueue(user("reliable", "--queues", "q"))
    assert rq.push("q", "x")
    for name in ("other", "qq", "{q}q"):
        with pytest.raises(ScriptError, match="permission"):
            rq.pop(1, 0, name)


@pytest.mark.parametrize(("words", "may"), [((), True), (("--queues", "q"), False)])
def test_dashboard_sees_queues_of_other_protocols_unless_it_is_for_some_queues(
    user, redis, words, may
):
    user("dashboard", *words)
    for line in ("HMGET rsmq:mails:Q vt", "LRANGE queue:default 0 9", "LLEN resque:queue:low"):
        reply = redis.execute_command("ACL", "DRYRUN", "shop", *line.split())
        assert (reply in (b"OK", True)) == may, line


def test_first_part_of_keys_goes_with_those_that_have_one(capsys):
    assert main(["acl", "worker", "--ns", "x"]) == 2
    assert "rsmq or reliable" in capsys.readouterr().err
    for words in (
        ("rsmq", "--queues", "a:b"),
        ("reliable", "--queues", "{q}"),
        ("reliable", "--ns", "a:b"),
    ):
        assert main(["acl", *words]) != 0
