"""Everything is deleted under running jobs: their reports are stale, no leftovers remain, work continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobq.chaos.ledger import Ledger, Line
from jobq.chaos.producers import LONG_S, QUEUE, enqueue
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.chaos.workers import wait_until
from jobq.queue.queue import Queue

from .conftest import JOBS, broken


def flushall(setup: RoundSetup) -> None:
    setup.client.command("FLUSHALL", "SYNC")


def clear(setup: RoundSetup) -> None:
    Queue(QUEUE, setup.client).admin.clear()


def lines(folder: str | Path, word: str) -> list[Line]:
    return [line for line in Ledger(str(folder)).lines() if line["word"] == word]


@pytest.mark.parametrize(("own", "wipe"), [(0, flushall), (1, clear)], indirect=["own"])
def test_late_ends_are_stale_and_leave_no_key_when_everything_was_deleted(
    played: Callable[..., object], folder, wipe
):
    def inject(setup: RoundSetup) -> None:
        told, mid = setup.workers.ledger, f"runs-{setup.random.getrandbits(32):x}"
        enqueue(Queue(QUEUE, setup.client), told, mid, LONG_S)
        wait_until(
            lambda: any(line["mid"] == mid for line in lines(told.folder, "start")), "no run", 100
        )
        with setup.injected("wipe", cuts=True):
            wipe(setup)

    verdict = played(Fault("wipe", "deletes everything", inject))
    assert broken(verdict, "lost", "misreported") == {}
    told = folder / "ledger"
    wiped = [line["until"] for line in lines(told, "fault")]
    accepted = {line["mid"]: line["at"] for line in lines(told, "enqueued")}
    # Nobody else ended these, and nobody else will run those: somebody deleted them.
    for mid in (*verdict.broken["lost"], *verdict.broken["misreported"]):
        assert any(accepted[mid] < at for at in wiped)
    assert verdict.attempts == verdict.acknowledged > JOBS
    assert verdict.duplicates == 0
    replies = [reply for line in lines(told, "finished") for reply in line["replies"]]
    assert "stale" in replies
