"""Orders to a running worker: it carries them out, answers, and shows the outcome."""

from __future__ import annotations

import os
import signal

import pytest

from jobq.queue import orders, presence

from .conftest import DEADLINE_S, until

#: tests/queue/test_orders.py reads the contents of the list on both servers.
pytestmark = pytest.mark.one_server


@pytest.fixture
def ordered(client):
    """ordered("quiet"): send that order to the worker w, and its answer."""

    def started():
        """Return the worker's entry once it has more than the name, which a worker claims before it starts."""
        entry = presence.some_workers(client, ["w"]).get("w")
        return entry if entry and entry.started_at else None

    def send(verb, **more):
        entry = until(started)
        order_id = orders.send(client, entry, verb, by="anna", **more)
        [(worker, answer)] = orders.answers(client, {"w": order_id}, DEADLINE_S)
        assert worker == "w" and answer is not None and answer.verb == verb
        return answer

    return send


def shows(client, **wanted):
    """Wait until the worker's entry has these values."""
    until(lambda: wanted.items() <= presence.workers(client)[0]._asdict().items(), str(wanted))


def test_worker_obeys_each_order(start, send, ledger, queue, client, redis, ordered, monkeypatch):
    worker = start("--processes", "1", "--lease", "6s", "--name", "w", "--shutdown-timeout", "120s")
    assert ordered("quiet").outcome == "done"
    shows(client, quiet=True, leaving=False)
    send("gated", "a")
    collected = [queue.admin.collect() for _ in range(100)]
    assert len(collected) == 100 and queue.status("a").word == "queued"
    assert ordered("resume").outcome == "done"
    shows(client, quiet=False)
    until(lambda: ledger.lines("start", "a"))

    [before] = worker.children()
    assert ordered("restart").outcome == "done"
    ledger.gate("a").touch()
    until(lambda: worker.children() not in ([], [before]))
    assert ledger.lines("end", "a")

    # An order that a later version may send.
    monkeypatch.setitem(orders.VERBS, "dance", "")
    refused = ordered("dance")
    assert (refused.outcome, "unknown command 'dance'" in refused.text) == ("refused", True)
    send("gated", "b")
    until(lambda: ledger.lines("start", "b"))
    assert ordered("drain").outcome == "done"
    shows(client, quiet=True, leaving=True)
    # A second order doesn't speed up the first.
    assert ordered("drain").outcome == "done"
    assert ordered("resume").outcome == "refused"
    ledger.gate("b").touch()
    assert worker.wait() == 0 and ledger.lines("end", "b")
    assert "received order 'quiet' from 'anna'" in worker.log
    assert not redis.exists("jobq:orders:w")


def test_dump_has_the_stack_of_a_job_that_holds_the_gil(start, send, ledger, queue, ordered):
    worker = start("--processes", "2", "--lease", "6s", "--name", "w")
    send("holds_gil", "a", 100.0)
    [started] = until(lambda: ledger.lines("start", "a"))
    pid = started["pid"]

    def dumped():
        answer = ordered("dump", child=pid)
        assert [one.pid for one in answer.children] == [pid]
        return answer.children[0].stack

    until(lambda: "in holds_gil" in dumped())
    other = ordered("dump", child=1)
    assert (other.outcome, other.text) == ("refused", "no child 1 runs here")
    # The message doesn't run again.
    queue.admin.pause()
    os.kill(pid, signal.SIGSTOP)
    everyone = ordered("dump")
    assert len(everyone.children) == 2
    [stopped] = [one.stack for one in everyone.children if one.pid == pid]
    assert stopped == "(it doesn't answer)"
    os.kill(pid, signal.SIGKILL)
    assert worker.stop() == 0
