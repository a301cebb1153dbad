"""Whatever a message holds and wherever it kills its child, it comes to an end, and all others run."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from .conftest import until

BREAKS = "tests.lifecycle.jobs_that_break_reading"
#: Possible contents for the jobs of this worker, whose timeouts are 1 and 3 s for `stubborn`.
CONTRADICTIONS = [
    {"hard_timeout": 30}, {"timeout": 60}, {"timeout": 60, "hard_timeout": 30}, {"timeout": 1e-9}, {"retries": 10_001},
    {"hard_timeout": 1e-9}, {"result_ttl": 1e-9}, {"result_ttl": 3_153_600_000}, {"timeout": 3_153_600_000},
]  # fmt: skip


@pytest.fixture(params=["no", "yes"], ids=["sync", "async"])
def loop(request):
    """Whether children have an event loop."""
    return {"LIFECYCLE_LOOP": request.param}


@pytest.mark.parametrize(("kind", "limit"), [("deadly-to-take", 1), ("deadly-to-resolve", 2)])
def test_message_that_kills_whoever_reads_it_is_charged_and_no_other(
    queue, start, send, ledger, loop, kind, limit
):
    for number in range(20):
        send("quick", f"q{number}")
        if number == 10:
            send("quick", kind)
    worker = start("--processes", "1", "--crash-limit", str(limit), module=BREAKS, env=loop)
    until(lambda: queue.admin.dead() and queue.admin.counts().messages == 0)

    [dead] = queue.admin.dead()
    assert (dead.mid, "SIGKILL" in dead.reason) == (kind, True)
    assert "while it was decoded" in dead.reason
    ended = Counter(line["name"] for line in ledger.lines("end"))
    assert set(ended) == {f"q{number}" for number in range(20)}
    # A job in a thread is cut off while the loop reads, perhaps just after it wrote its end.
    beside = (
        r" quick (\S+) attempt 1 of queue low crashed" if loop["LIFECYCLE_LOOP"] == "yes" else "$^"
    )
    again = {name for name, times in ended.items() if times > 1}
    assert worker.stop() == 0
    assert again <= set(re.findall(beside, worker.log))
    assert queue.admin.fsck() == []


@pytest.mark.loop
def test_job_beside_a_message_that_kills_its_reader_is_not_charged(queue, start, send, ledger):
    start("--processes", "1", "--concurrency", "5", "--crash-limit", "2", module=BREAKS)
    send("agated", "neighbour")
    until(lambda: ledger.lines("start"))
    send("quick", "deadly-to-resolve")
    until(queue.admin.dead)
    ledger.gate("neighbour").touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert [(one.mid, one.ncrashes) for one in queue.admin.dead()] == [("deadly-to-resolve", 2)]
    assert ledger.lines("end", "neighbour")


def test_fault_of_the_reader_ends_no_child(queue, start, send, ledger, loop):
    send("quick", "fails-to-resolve")
    send("quick", "after")
    options = ("--processes", "1", "--unknown-job-retry-for", "0s")
    worker = start(*options, module=BREAKS, env=loop)
    until(lambda: queue.admin.dead() and ledger.lines("end", "after"))
    assert "a fault of jobq" in queue.admin.dead()[0].reason
    assert worker.stop() == 0
    assert worker.log.count(" started") == 1


def test_options_that_contradict_the_job_end_no_child_but_by_their_hard_timeout(
    queue, start, send, ledger, loop
):
    for number, options in enumerate(CONTRADICTIONS):
        args = [str(ledger.path), f"m{number}"]
        content = {"job": "quick", "args": args, "options": options}
        queue.enqueue(json.dumps(content).encode(), mid=f"m{number}")
        queue.enqueue(json.dumps({**content, "job": "stubborn-not-here"}).encode())
    impatient = {
        "job": "stubborn",
        "args": [str(ledger.path), "s"],
        "options": {"hard_timeout": 0.5},
    }
    queue.enqueue(json.dumps(impatient).encode(), mid="s")
    send("quick", "after")
    options = ("--processes", "1", "--unknown-job-retry-for", "0s", "--crash-limit", "1")
    worker = start(*options, env=loop)
    until(lambda: queue.admin.counts().messages == 0)

    dead = {one.mid: one.reason for one in queue.admin.dead() if len(one.mid) < 4}
    assert "make hard_timeout longer" in dead.pop("m2")
    assert "options.retries" in dead.pop("m4")
    assert "hard timeout" in dead.pop("s")
    for reason in dead.values():
        assert "timeout" in reason
    assert set(dead) <= {"m3", "m5"}
    assert ledger.lines("end", "after")
    assert worker.stop() == 0
    # One was killed for `s`; a hard timeout of a nanosecond may have met a second message.
    assert worker.log.count(" started") <= 3
