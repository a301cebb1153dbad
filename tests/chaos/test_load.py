"""Load instead of faults: a ready list that never empties, backlogs, many that wait for later."""

from __future__ import annotations

import time
from functools import partial

from jobq.chaos import queue_faults
from jobq.chaos.faults import FAULTS
from jobq.chaos.ledger import Ledger
from jobq.chaos.producers import QUEUE, contents
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.chaos.workers import children_of
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

from .conftest import JOBS, broken

LONG = JOBS > 300
DEADLINE_S = 300


def runs(ledger: Ledger, word: str) -> set[tuple[str, int]]:
    """The mids and processes of which a line tells so."""
    return {(line["mid"], line["pid"]) for line in ledger.lines() if line["word"] == word}


def later(setup: RoundSetup, count: int, delay: float) -> set[str]:
    """Mids that become due after a while."""
    mids = {f"later-{n}" for n in range(count)}
    for mid in mids:
        setup.workers.ledger.write("enqueue", mid=mid)
    queue = Queue(QUEUE, setup.client)
    for one in queue.enqueue_many([(mid, contents(mid, 0.0)) for mid in mids], delay=delay):
        setup.workers.ledger.write("enqueued", mid=one.mid, outcome="ok", action=one.action)
    return mids


def test_nobody_starves_behind_a_ready_list_that_never_empties(played):
    """Due messages, and messages of a killed worker, run although there is always other work."""
    least: list[int] = []

    def crowd(setup: RoundSetup) -> None:
        if least:
            return
        ledger, queue = setup.workers.ledger, Queue(QUEUE, setup.client)
        fill = partial(queue_faults.backlog, setup, 2_000, 0.01)
        fill()
        waiting = later(setup, 50, delay=0.3)
        least.append(queue.admin.counts().ready)
        killed = set(children_of(setup.workers.running[0].pid))
        FAULTS["worker-kill"].inject(setup)
        cut = {mid for mid, pid in runs(ledger, "start") - runs(ledger, "end") if pid in killed}
        deadline = time.monotonic() + DEADLINE_S
        while (waiting | cut) - {mid for mid, _ in runs(ledger, "end")}:
            least.append(queue.admin.counts().ready)
            assert time.monotonic() < deadline, "somebody starves"
            if least[-1] < 2_000:
                fill()

    verdict = played(Fault("crowd", "ready is never empty", crowd, lease_s=2.0))
    assert broken(verdict) == {}
    assert min(least) > 0
    assert verdict.recoveries


def test_every_message_of_a_backlog_is_handed_out_once(own):
    count = 1_000_000 if LONG else 20_000
    queue = Queue("low", own.client("backlog"))
    sent = {f"m{n}" for n in range(count)}
    queue.enqueue_many((mid, b"") for mid in sent)
    handed: set[str] = set()
    messages = queue.dequeue(1_000).messages
    while messages:
        mids = {message.mid for message in messages}
        assert handed.isdisjoint(mids)
        handed |= mids
        endings = [Ending(mid=message.mid, token=message.token) for message in messages]
        replies, then = queue.finish(endings, dequeue=1_000)
        assert set(replies) == {"ok"}
        assert then is not None
        messages = then.messages
    assert handed == sent
    while queue.admin.counts().messages:
        queue.admin.collect(1_000)
    assert queue.admin.fsck() == []


def test_many_that_are_not_due_stand_in_nobodys_way(played):
    many = partial(queue_faults.delayed, count=1_000_000 if LONG else 50_000)
    verdict = played(FAULTS["delayed"]._replace(inject=many))
    assert broken(verdict) == {}
    assert verdict.duplicates == 0
