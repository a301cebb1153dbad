"""T16: jobs that try to outlive their limits: their child is killed, blamed, and others go on."""

from __future__ import annotations

import sys

import pytest

from jobq.jobs.codec import encode
from tests.lifecycle.conftest import start, until

__all__ = ["start"]

MODULE = "tests.security.jobs_that_resist"


@pytest.fixture
def notes(tmp_path):
    """Where jobs write."""
    file = tmp_path / "notes"
    file.touch()
    return file


@pytest.mark.parametrize("resists", ["catches", "blocks", "leaves"])
def test_job_that_resists_is_killed_at_its_hard_timeout(queue, start, notes, resists):
    worker = start("--processes", "1", "--crash-limit", "2", module=MODULE)
    queue.enqueue(encode(resists, (str(notes),)), mid="bad")
    until(lambda: queue.admin.dead())
    [dead] = queue.admin.dead()
    assert (dead.mid, dead.ncrashes) == ("bad", 2)
    assert "hard timeout" in dead.reason
    assert notes.read_text().splitlines() == ["start", "start"]
    queue.enqueue(encode("looks", (str(notes),)), mid="good")
    until(lambda: len(notes.read_text().splitlines()) == 3)
    assert worker.stop() == 0


def test_job_that_exits_its_child_is_blamed_and_its_worker_lives(queue, start, notes):
    worker = start("--processes", "1", "--crash-limit", "2", module=MODULE)
    queue.enqueue(encode("exits", (str(notes),)), mid="bad")
    until(lambda: queue.admin.dead())
    assert queue.admin.dead()[0].ncrashes == 2
    assert worker.process.poll() is None and worker.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux")
def test_program_of_a_job_inherits_no_connection_or_pipe(queue, start, notes):
    queue.enqueue(encode("looks", (str(notes),)))
    assert start("--processes", "1", "--burst", module=MODULE).wait() == 0
    assert notes.read_text().splitlines() == ["[0, 1, 2]"]


@pytest.mark.parametrize("resists", ["catches", "leaves"])
def test_nothing_outlives_a_killed_supervisor(queue, start, notes, resists):
    worker = start("--processes", "1", module=MODULE)
    queue.enqueue(encode(resists, (str(notes),)))
    until(lambda: "start" in notes.read_text())
    children = worker.children()
    assert children
    worker.process.kill()
    worker.process.wait()
    until(lambda: not worker.children() or all(not alive(pid) for pid in children))


def alive(pid: int) -> bool:
    """Whether that process still runs."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
