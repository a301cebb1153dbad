"""Every fault in its short form: nothing accepted is lost, and nothing runs twice without a reason."""

from __future__ import annotations

import time

import pytest

from jobq.chaos.faults import FAULTS, Fault, Stage
from jobq.chaos.producing import QUEUE
from jobq.engine.queue import Queue

NUMBERED = [pytest.param(number, name, id=name) for number, name in enumerate(FAULTS)]


@pytest.mark.parametrize(("own", "fault"), NUMBERED, indirect=["own"])
def test_every_promise_is_kept_under(played, own, fault):
    verdict = played(fault)
    assert verdict.holds, verdict
    assert verdict.attempts - verdict.dead >= 300
    assert verdict.duplicates <= verdict.hit, verdict
    assert bool(verdict.faults) == (fault != "none")
    assert bool(verdict.dead) == (fault == "poison")


def test_messages_that_somebody_cleared_are_found_lost(played):
    def clear(stage: Stage) -> None:
        queue = Queue(QUEUE, stage.client)
        queue.pause()
        time.sleep(0.3)  # something waits now, as long as anybody produces
        queue.clear()
        queue.resume()

    verdict = played(Fault("clear", "drops everything", clear))
    assert verdict.broken["lost"]
    assert not verdict.holds
