"""Jobs with limits: asked in the child, slots kept by the supervisor."""

from __future__ import annotations

import json

import pytest

from jobq.limits.directory import limit_facts

from .conftest import until

MODULE = "tests.lifecycle.jobs_with_limits"
HOLDERS = "jobq:limit:{%s}:holders"


@pytest.fixture
def limited(start, tmp_path, queue):
    """The worker's start, and the notes of the jobs; limited(job, …) enqueues one."""

    class Limited:
        notes_file = tmp_path / "notes"

        def start(self, *options):
            return start(*options, module=MODULE, env={"LIMITS_FOLDER": str(tmp_path)})

        def notes(self):
            return self.notes_file.read_text().splitlines() if self.notes_file.exists() else []

        def __call__(self, job, *args):
            call = {"v": 1, "job": f"{MODULE}.{job}", "args": args}
            return queue.enqueue(json.dumps(call).encode()).mid

    return Limited()


def test_slots_of_a_child_that_died_are_free_at_once(limited, queue, redis):
    limited("dies")
    worker = limited.start("--processes", "1", "--lease", "1h")
    until(lambda: limited.notes() == ["dies", "lives"])
    until(lambda: not redis.zcard(HOLDERS % "one"))
    assert worker.stop() == 0


@pytest.mark.one_server
def test_the_supervisor_renews_slots_of_jobs_that_run(limited, queue, redis, tmp_path):
    for _ in range(2):
        limited("stays", "gate")
    limited("asks_inside", "gate")
    worker = limited.start("--processes", "3", "--lease", "6s")
    until(lambda: sorted(limited.notes()) == ["inside False", "stays"])
    for name in ("one", "two"):
        before = redis.zrange(HOLDERS % name, 0, 0, withscores=True)[0][1]
        until(
            lambda name=name, before=before: (
                redis.zrange(HOLDERS % name, 0, 0, withscores=True)[0][1] > before + 100
            )
        )
    assert limited.notes().count("stays") == 1
    (tmp_path / "gate").touch()
    until(lambda: sorted(limited.notes()) == ["inside False", "stays", "stays", "still False"])
    until(
        lambda: (
            not redis.exists(HOLDERS % "one", HOLDERS % "two") or not redis.zcard(HOLDERS % "two")
        )
    )
    assert worker.stop() == 0


def test_a_job_that_is_refused_waits_without_an_attempt_and_wastes_nothing(limited, queue, client):
    mids = [limited("hourly") for _ in range(3)]
    worker = limited.start("--processes", "2")
    until(lambda: queue.admin.counts().delayed == 2 and limited.notes() == ["hourly 1"])
    waiting = [one for mid in mids if (one := queue.status(mid)).word == "queued-with-backoff"]
    assert [one.attempts for one in waiting] == [0, 0]
    until(lambda: not {one.limit: one for one in limit_facts(client)}["one"].used)
    facts = {one.limit: one for one in limit_facts(client)}
    assert (facts["hourly"].used, facts["every"].used) == (1, 1)
    assert worker.stop() == 0


def test_jobs_come_back_until_all_have_run(limited, queue):
    for _ in range(5):
        limited("short")
    assert limited.start("--processes", "2").process.poll() is None
    until(lambda: limited.notes() == ["short 1"] * 5)


@pytest.mark.loop
@pytest.mark.one_server
def test_async_jobs_run_as_many_at_once_as_there_are_slots(limited, queue):
    for _ in range(3):
        limited("waits")
    worker = limited.start("--processes", "1")
    until(lambda: limited.notes().count("ends") == 3)
    running = [line.startswith("begins") - (line == "ends") for line in limited.notes()]
    assert max(sum(running[: end + 1]) for end in range(len(running))) <= 2
    assert set(limited.notes()) == {"begins 1", "ends"}
    assert worker.stop() == 0
