"""What a child's death comes to, whatever its messages say by then."""

from __future__ import annotations

import os
import resource

import pytest

from jobq.events import columns_of
from jobq.jobs.codec import encode
from jobq.worker import slots
from jobq.worker.death import Death, bury
from jobq.worker.slots import Held


@pytest.fixture
def died(queue):
    """died(mid, token): a child killed while it ran that message."""

    def bury_it(mid, token):
        held = [Held(0, slots.RUNNING, 0, mid, token)]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        [crash] = bury(Death(os.getpid(), 9, usage, "", held, 5), [queue], 3, "w")
        return crash

    return bury_it


def test_crash_names_job_attempt_queue_and_what_follows(queue, died):
    queue.enqueue(encode("resize"), mid="m")
    [message] = queue.dequeue().messages
    crash = died("m", message.token)
    assert crash.what == f"resize m attempt 1 of queue {queue.name}"
    assert crash.follows == "; it runs again"


def test_crash_of_a_job_with_a_separator_in_its_name_is_recorded_in_its_columns(queue, died, redis):
    queue.enqueue(encode("a\x1fb\nc"), mid="m")
    [message] = queue.dequeue().messages
    assert died("m", message.token).job == "a\\x1fb c"
    [(_, fields)] = redis.xrange(f"{queue.prefix}events")
    [(version, record)] = fields.items()
    found = columns_of(record, version)
    assert (found["job"], found["attempt"], found["error"]) == ("a\\x1fb c", 1, "crash")


def test_crash_names_no_job_when_the_mid_was_cancelled_and_is_another_life_s(queue, died):
    queue.enqueue(encode("one"), mid="m")
    [message] = queue.dequeue().messages
    queue.cancel("m")
    queue.enqueue(encode("other"), mid="m")
    crash = died("m", message.token)
    assert (crash.job, crash.attempt, crash.follows) == ("", 0, "")
    assert crash.what == f"m of queue {queue.name}"
