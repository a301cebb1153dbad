"""Operations change previewed, unchanged messages, once, and can be undone byte for byte."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobq.cli import main
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import ConfigError, JobqError
from jobq.queue.audit_log import AuditLog
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.web.access.identity import Identity, UserRole
from jobq.web.operations import applying
from jobq.web.operations.service import NotAllowedError, Operations
from jobq.web.operations.store import CHUNK
from tests.security.logins import logins
from tests.web.operations.conftest import ANNA

ROOT = Path(__file__).resolve().parents[3]
BERT = Identity("bert", UserRole.READ)


@pytest.fixture
def low(client):
    queue = Queue("low", client)
    queue.register()
    return queue


def stored(redis: Any, *names: str) -> dict[str, Any]:
    """All that a queue stores of messages, in its order."""
    found = {}
    for key in sorted(redis.keys("jobq:{low}:*")):
        name = key.decode().rpartition(":")[2]
        if (
            name not in ("meta", "events", "wake")
            and ":call:" not in key.decode()
            and ":bin:" not in key.decode()
        ):
            found[name] = redis.dump(key) if redis.type(key) in (b"list", b"zset") else (
                redis.hgetall(key) if redis.type(key) == b"hash" else redis.type(key)
            )  # fmt: skip
    return found


def phases(client):
    return [(one.phase, one.verb, one.number) for one in AuditLog(client).newest(100)][::-1]


def test_preview_counts_names_and_samples_and_changes_nothing(low, kill, frozen, redis):
    kill(low, 300)
    before = stored(redis)
    view = frozen("revive", filter="queue:low error:timeout*")
    state = view.state
    assert (state.phase, state.number, state.nchunks, state.looked_at) == ("previewed", 300, 2, 300)
    assert state.queues == [("low", 300)] and state.errors == [("Timeout", 300)]
    assert dict(state.jobs) == {f"shop.job{n}": 100 for n in range(3)}
    assert len(state.samples) == 5 and state.oldest_ms <= state.newest_ms
    assert view.may_apply and not view.may_undo and view.confirmation == ""
    assert stored(redis) == before


@pytest.mark.parametrize("chosen", [True, False])
def test_preview_stays_unfinished_when_the_dashboard_closes(low, kill, frozen, operations, chosen):
    [dead_id] = kill(low, 1)
    operations.close()
    view = frozen("purge", **{"ids": [("low", dead_id)]} if chosen else {"filter": "queue:low"})
    assert view.state.phase != "previewed" and not view.may_apply


def test_revive_and_its_undo_leave_the_dead_as_they_were(
    low, kill, frozen, applied, undone, redis, client
):
    ids = kill(low, 600)
    before = stored(redis)
    done = applied(frozen("revive", filter="queue:low"))
    assert (done.state.phase, done.state.results) == ("done", {"applied": 600})
    assert (low.admin.counts().ready, low.admin.counts().dead) == (600, 0)
    [started] = low.dequeue(1).messages
    assert f"{started.mid}#" in ids[-1]  # oldest dead messages first
    back = undone(done)
    assert (back.state.phase, back.state.undone) == ("undone", {"restored": 599, "changed": 1})
    assert low.status(started.mid).word == "locked"
    assert low.admin.counts().dead == 599 and low.admin.fsck() == []
    after = stored(redis)
    assert after["dead-messages"].items() <= before["dead-messages"].items()
    assert phases(client) == [
        ("intent", "revive", 600), ("done", "revive", 600), ("intent", "revive", 600), ("undone", "revive", 599),
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["purge", "cancel", "run-now"])
def test_undo_restores_every_byte_and_place(low, kill, frozen, applied, undone, redis, verb):
    kill(low, 260)
    for n in range(260):
        low.enqueue(f"now{n}".encode(), mid=f"now{n}")
        low.enqueue(f"later{n}".encode(), mid=f"later{n}", delay=3600 + n)
    before = stored(redis)
    done = applied(frozen(verb, filter="queue:low"))
    number = 520 if verb == "cancel" else 260
    assert done.state.results == {"applied": number}
    assert stored(redis) != before
    assert undone(done).state.undone == {"restored": number}
    after = stored(redis)
    if verb == "run-now":
        # Copies that were left there are noted as stale.
        del before["ready"], after["ready"]
        waiting = [
            one.mid
            for offset in (0, 250)
            for one in low.admin.content("ready", offset, 250).entries
        ]
        assert waiting == [f"now{n}" for n in range(260)]
    after.pop("left-ready", None)
    assert after == before
    assert low.admin.fsck() == []


def test_messages_that_changed_since_the_preview_are_left_alone(low, frozen, applied, client):
    for n in range(6):
        low.enqueue(b"old", mid=f"m{n}")
    view = frozen("cancel", filter="queue:low")
    [taken] = low.dequeue(1).messages
    low.cancel("m1", "m2")
    low.enqueue(b"new", mid="m2")  # another message with its mid
    low.enqueue(b"later", mid="m9")
    done = applied(view)
    assert done.state.results == {"applied": 3, "changed": 2, "gone": 1}
    assert low.status(taken.mid).word == "locked"
    assert {one.mid for one in low.admin.content("ready").entries} == {"m2", "m9"}


def test_revive_is_spread_over_time_by_the_oldest_first(low, kill, frozen, applied, client):
    oldest, *others = [one.rpartition("#")[0] for one in reversed(kill(low, 11))]
    before = client.clock_ms()
    done = applied(frozen("revive", filter="queue:low"), spread_s=600)
    times = {one.mid: one.not_before for one in low.admin.content("due").entries}
    assert [one.mid for one in low.admin.content("ready").entries] == [oldest]
    starts = [times[mid] - done.state.began_at for mid in others]
    assert starts == [60_000 * n for n in range(1, 11)]
    assert before <= done.state.began_at <= client.clock_ms()


def test_revive_reaches_the_partitions_of_now_when_the_queue_was_partitioned_since(
    low, kill, frozen, applied, client
):
    kill(low, 3)
    partition(client, "low", 2)

    done = applied(frozen("revive", filter="queue:low"), spread_s=600)

    assert done.state.results == {"applied": 3}
    counts = low.admin.counts()
    assert (counts.dead, counts.ready + counts.delayed) == (0, 3)


def test_chosen_messages_are_frozen_and_others_are_not(low, kill, frozen, applied):
    ids = kill(low, 5)
    view = frozen(
        "purge", ids=[("low", ids[1]), ("low", ids[3]), ("low", "gone#x"), ("low", ids[1])]
    )
    assert view.state.number == 2
    assert applied(view).state.results == {"applied": 2}
    assert {one.dead_id for one in low.admin.dead()} == {ids[0], ids[2], ids[4]}
    for n in range(3):
        low.enqueue(b"x", mid=f"m{n}")
    low.enqueue(b"x", mid="due", delay=60)
    [running] = low.dequeue(1).messages
    every = [("low", mid) for mid in ("m0", "m1", "m2", "due")]
    assert frozen("cancel", ids=every).state.number == 3
    assert frozen("run-now", ids=every).state.number == 1
    last = frozen("cancel-running", ids=every)
    assert last.state.number == 1 and last.confirmation == "low"
    done = applied(last, confirmed="low")
    assert done.state.results == {"applied": 1} and not done.may_undo
    assert low.status(running.mid).word != "locked"


def test_what_cannot_be_undone_has_to_be_confirmed(
    low, kill, frozen, operations, applied, monkeypatch
):
    monkeypatch.setattr("jobq.web.operations.freezing.MAX_IN_BIN", 3)
    kill(low, 4)
    view = frozen("purge", filter="queue:low")
    assert "4 messages of low; at most 3 can be kept" in view.state.why_no_undo
    with pytest.raises(ConfigError, match="type low to confirm"):
        operations.apply(view.state.id, ANNA)
    done = applied(view, confirmed="low")
    assert done.state.results == {"applied": 4} and not done.may_undo
    with pytest.raises(ConfigError, match="can't be undone"):
        operations.undo(view.state.id, ANNA)


def test_roles_are_checked_and_refusals_are_in_the_log(
    low, kill, frozen, operations, contents, client
):
    kill(low, 1)
    view = frozen("purge", filter="queue:low")
    carl = Identity("carl", UserRole.OPERATE)
    for call in (
        lambda: operations.create(BERT, "revive", contents), lambda: operations.create(carl, "purge", contents),
        lambda: operations.apply(view.state.id, carl), lambda: operations.undo(view.state.id, carl),
        lambda: operations.stop(view.state.id, carl),
    ):  # fmt: skip
        with pytest.raises(NotAllowedError) as error:
            call()
        assert "needs the role" in str(error.value)
    assert {phase for phase, *_ in phases(client)} == {"refused"}
    assert low.admin.counts().dead == 1


def test_nothing_is_done_that_the_audit_log_does_not_have(low, kill, frozen, applied, redis):
    kill(low, 3)
    view = frozen("purge", filter="queue:low")
    redis.delete("jobq:audit")
    redis.set("jobq:audit", "x")
    done = applied(view)
    assert (done.state.phase, done.state.results) == ("failed", {})
    assert "append" in done.state.error and low.admin.counts().dead == 3
    redis.delete("jobq:audit")
    assert applied(done).state.results == {"applied": 3}


def test_operation_is_stopped_and_goes_on(low, kill, frozen, operations, client, contents):
    kill(low, 3 * CHUNK)
    view = frozen("purge", filter="queue:low")

    def pause(seconds: float) -> None:
        operations.stop(view.state.id, ANNA)

    slow = Operations(client, client, pause)
    slow.apply(view.state.id, ANNA)
    slow.wait()
    stopped = slow.view(view.state.id)
    assert (stopped.state.phase, stopped.state.results) == ("stopped", {"applied": CHUNK})
    assert stopped.state.stopped_by == "anna" and stopped.may_apply and stopped.may_undo
    assert AuditLog(client).page()[0].note.startswith("stopped by anna")
    operations.apply(view.state.id, ANNA)
    operations.wait()
    assert operations.view(view.state.id).state.results == {"applied": 3 * CHUNK}
    with pytest.raises(ConfigError, match="can't be applied"):
        operations.apply(view.state.id, ANNA)


def test_two_processes_never_work_on_one_operation(low, kill, frozen, operations, client):
    kill(low, 2)
    view = frozen("purge", filter="queue:low")
    assert operations.store.lock(view.state.id)
    with pytest.raises(ConfigError, match="another process"):
        operations.apply(view.state.id, ANNA)


@pytest.mark.parametrize("taken", [True, False])
def test_process_whose_lock_ended_leaves_the_operation_to_who_took_it(
    low, kill, frozen, operations, client, taken
):
    kill(low, 3 * CHUNK)
    view = frozen("revive", filter="queue:low")
    key = operations.store.key(view.state.id) + ":lock"

    def stands_still(seconds):
        client.command("DEL", key)
        if taken:
            client.command("SET", key, "of another process")

    operations.pause = stands_still
    operations.apply(view.state.id, ANNA)
    operations.wait()
    found = operations.view(view.state.id).state
    assert found.results["applied"] == (2 if taken else 3) * CHUNK
    assert found.phase == ("applying" if taken else "done")
    assert client.command("GET", key) == (b"of another process" if taken else None)


@pytest.mark.parametrize("act", ["apply", "undo"])
def test_two_users_at_once_do_not_overwrite_each_others_results(
    low, kill, frozen, applied, operations, client, monkeypatch, act
):
    kill(low, 5)
    view = frozen("revive", filter="queue:low")
    if act == "undo":
        applied(view)
    other, lock = Operations(client, client, pause=lambda seconds: None), operations.store.lock

    def late(op):
        getattr(other, act)(op, ANNA)
        other.wait()
        return lock(op)

    monkeypatch.setattr(operations.store, "lock", late)
    with pytest.raises(ConfigError, match="another user has changed this operation"):
        getattr(operations, act)(view.state.id, ANNA)
    state = operations.view(view.state.id).state
    assert (state.results, state.undone) == (
        {"applied": 5},
        {"restored": 5} if act == "undo" else {},
    )
    assert not operations.view(view.state.id).is_live


def test_an_operation_is_never_made_over_another(low, kill, frozen, operations, contents):
    kill(low, 2)
    made = frozen("revive", filter="queue:low")
    with pytest.raises(ConfigError, match="already"):
        operations.create(ANNA, "purge", contents, filter="queue:low", op=made.state.id)
    assert operations.view(made.state.id).state == made.state


KILLED = """
import os, sys
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.web.operations.service import Operations
from tests.web.operations.conftest import ANNA
client = connect(settings=ServerSettings(url=sys.argv[1]))
calls = []
def pause(seconds):
    calls.append(seconds)
    if len(calls) == 8:
        print("half", flush=True)
        sys.stdin.read()
if sys.argv[3] == "unrecorded":
    # The call of the ninth chunk took place, and its result was not kept.
    from jobq.web.operations import applying
    done = applying.Applier._done
    def doing(self, number, *rest):
        found = done(self, number, *rest)
        if len(calls) == 7:
            pause(0)
        return found
    applying.Applier._done = doing
operations = Operations(client, client, pause)
operations.apply(sys.argv[2], ANNA)
operations.wait()
"""


@pytest.mark.parametrize("moment", ["recorded", "unrecorded"])
def test_operation_over_5000_dead_is_applied_once_though_others_change_them_and_its_process_is_killed(
    low, kill, frozen, applied, undone, client, redis, moment
):
    """A3: exactly what was previewed and has not changed, once; the undo restores it; the audit log is complete."""
    ids = kill(low, 5_000)
    view = frozen("purge" if moment == "recorded" else "revive", filter="queue:low")
    before = redis.hgetall("jobq:{low}:dead-messages")
    kill(low, 50, first=9_000)
    others = {*ids[100:140], *ids[4_000:4_040]}
    low.admin.revive(*ids[100:140])
    low.admin.purge(*ids[4_000:4_040])
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, client.url, view.state.id, moment],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as killed:  # fmt: skip
        assert killed.stdout and killed.stdout.readline() == "half\n"
        killed.kill()
    redis.delete(f"jobq:web:op:{view.state.id}:lock")  # it would end by itself in half a minute
    done = applied(view)
    assert done.state.results == {"applied": 5_000 - len(others), "gone": len(others)}
    left = {one.dead_id for one in low.admin.iter_dead()}
    assert not left & set(ids) and len(left) == 50
    assert undone(done).state.undone == {"restored": 5_000 - len(others)}
    after = redis.hgetall("jobq:{low}:dead-messages")
    assert {one: after[one] for one in before if one.decode() not in others} == {
        one: text for one, text in before.items() if one.decode() not in others
    }  # fmt: skip
    assert low.admin.counts().dead == 5_000 - len(others) + 50 and low.admin.fsck() == []
    assert [phase for phase, *_ in phases(client)] == [
        "intent",
        "intent",
        "done",
        "intent",
        "undone",
    ]
    assert {one.op for one in AuditLog(client).page()} == {view.state.id}


def test_dashboards_user_previews_and_operators_user_does_all_of_it(
    server, low, kill, redis, client, capsys, contents
):
    kill(low, 3)
    low.enqueue(b"x", mid="m", delay=60)
    with two_logins(server, redis, client, capsys) as (reads, operate):
        operations = Operations(reads, operate)
        for verb in ("revive", "run-now", "cancel", "purge"):
            op = operations.create(ANNA, verb, contents, filter="queue:low")
            operations.wait()
            assert operations.view(op).state.phase == "previewed", operations.view(op).state.error
            assert operations.view(op).state.number
            operations.apply(op, ANNA)
            operations.wait()
            assert operations.view(op).state.phase == "done", operations.view(op).state.error
            operations.undo(op, ANNA)
            operations.wait()
            assert operations.view(op).state.phase == "undone", operations.view(op).state.error
        assert len(operations.listed()) == 4
        assert len(AuditLog(reads).page()) == 16
        op = operations.listed()[0].id
        for words in (("HSET", f"jobq:web:op:{op}", "state", "x"), ("DEL", f"jobq:web:op:{op}")):
            with pytest.raises(JobqError, match="permission"):
                reads.command(*words)


@contextmanager
def two_logins(server, redis, client, capsys):
    """Clients of the users `dashboard` and `operator`."""
    with logins(server, redis, client, capsys):
        made = []
        for role in ("dashboard", "operator"):
            main(["acl", role, "--user", role])
            redis.execute_command(*shlex.split(capsys.readouterr().out), ">x")
            url = server.url.replace("unix://", f"unix://{role}:x@")
            made.append(connect(settings=ServerSettings(url=url, functions=True, patience_s=10)))
        yield made
        for role, one in zip(("dashboard", "operator"), made, strict=True):
            one.close()
            redis.execute_command("ACL", "DELUSER", role)


def test_more_than_an_operation_may_have_is_capped_and_said(low, kill, frozen, monkeypatch):
    monkeypatch.setattr("jobq.web.operations.freezing.MAX_MESSAGES", 1_200)
    low.enqueue_many([(f"m{n}", b"x") for n in range(2_500)])
    state = frozen("cancel", filter="queue:low").state
    assert state.number == 1_200 and state.capped


@pytest.mark.parametrize(
    "found", [b"", b"{}", b"[]", b'{"id":"x","verb":"y","by":""}', b"\xff", b"[" * 10_000]
)
def test_damaged_operation_is_none(operations, redis, found):
    op = "0" * 16
    redis.hset(f"jobq:web:op:{op}", "state", found)
    redis.zadd("jobq:web:operations", {op: 1, b"\xff": 2, "../x": 3})
    assert operations.view(op) is None and operations.listed() == []
    redis.zadd("jobq:web:operations", {"1" * 16: 4})
    redis.rpush(f"jobq:web:op:{'1' * 16}", b"x")
    assert operations.listed() == []
    for wrong in ("", "../../x", "A" * 16, "0" * 17):
        with pytest.raises(ConfigError, match="not the id"):
            operations.view(wrong)


def test_states_are_json(low, kill, frozen, redis):
    kill(low, 1)
    state = frozen("revive", filter="queue:low").state
    assert json.loads(redis.hget(f"jobq:web:op:{state.id}", "state"))["filter"] == "queue:low"
    assert 0 < redis.pttl(f"jobq:web:op:{state.id}") <= 3_600_000
    assert applying.RATE == 2_000
