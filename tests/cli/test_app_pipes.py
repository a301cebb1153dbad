"""Whoever reads a command's output may stop at any line: the command ends quietly, and leaves nothing half done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq.queue.queue import Queue

from ..conftest import connected, emptied, serving

ROOT = Path(__file__).resolve().parents[2]
NAMES = [f"q{number}" for number in range(8)]
LIMIT_S = 300


@pytest.fixture
def redis(servers: Any, short_folder: Path) -> Iterator[Any]:
    """Return a client for one kind of server; pipes don't depend on the server."""
    with emptied(serving("valkey", servers, short_folder)) as client:
        yield client


@pytest.fixture
def client(redis: Any, servers: Any) -> Iterator[Any]:
    with connected(servers["valkey"]) as client:
        yield client


@pytest.fixture
def begun(bare: Path, client: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """begun("queues"): a command in a process of its own; nobody reads its stdout, unless that is given."""

    started: list[subprocess.Popen[str]] = []

    def begin(*args: str, stdout: int | None = None) -> subprocess.Popen[str]:
        reading, writing = os.pipe()
        os.close(reading)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "JOBQ_URL": client.url}
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobq", *args], stdout=writing if stdout is None else stdout,
                stderr=subprocess.PIPE, text=True, env=env, cwd=bare,
            )  # fmt: skip
        finally:
            os.close(writing)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()


@pytest.fixture
def queues(client: Any) -> list[Queue]:
    """Some, with a message each."""
    made = [Queue(name, client) for name in NAMES]
    for queue in made:
        queue.admin.events_level("all")
        queue.enqueue(b'{"v":1,"job":"a.b"}', mid=f"of-{queue.name}")
    return made


def test_command_that_reads_ends_quietly_when_nobody_reads_it(
    begun: Any, queues: list[Queue]
) -> None:
    verbs = (
        ("queues",), ("queues", "--watch", "--every", "10ms"), ("queue", "peek", "--all", "--json"),
        ("status", "of-q1"), ("events", "tail"), ("events", "tail", "--follow"), ("check", "doctor"),
        ("check", "audit"), ("--help",),
    )  # fmt: skip
    processes = {verb: begun(*verb) for verb in verbs}
    for verb, process in processes.items():
        _, told = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, told) == (141, ""), verb


def test_follow_ends_when_its_reader_is_gone_and_nothing_happens(
    begun: Any, queues: list[Queue]
) -> None:
    process = begun("events", "tail", "--follow", "-n", "1", stdout=subprocess.PIPE)
    assert "q7" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(LIMIT_S) == 141
    assert process.stderr.read() == ""


def test_settings_reach_every_queue_when_nobody_reads_the_answers(
    begun: Any, queues: list[Queue]
) -> None:
    ran = [
        begun("events", "level", "off"),
        begun("events", "maxlen", "1234"),
        begun("pause", *NAMES),
    ]
    assert [process.wait(LIMIT_S) for process in ran] == [141] * 3
    assert {queue.admin.events_level() for queue in queues} == {"off"}
    assert {queue.admin.events_maxlen() for queue in queues} == {1234}
    assert all(queue.admin.counts().paused for queue in queues)
    assert begun("resume", *NAMES).wait(LIMIT_S) == 141
    assert not any(queue.admin.counts().paused for queue in queues)


def test_messages_are_all_changed_when_nobody_reads_the_answers(
    begun: Any, queues: list[Queue], kill_message: Callable[..., str]
) -> None:
    assert {queue.admin.counts().ready for queue in queues} == {1}
    assert begun("cancel", *[f"of-{name}" for name in NAMES]).wait(LIMIT_S) == 141
    assert {queue.admin.counts().ready for queue in queues} == {0}
    for queue in queues:
        kill_message(queue, "again")
        kill_message(queue, f"dead-{queue.name}")
    assert begun("dead", "revive", *[f"dead-{name}" for name in NAMES]).wait(LIMIT_S) == 141
    assert {queue.admin.counts().ready for queue in queues} == {1}
    assert begun("dead", "purge", "--where", "mid=again", "--yes").wait(LIMIT_S) == 141
    assert {queue.admin.counts().dead for queue in queues} == {0}


def test_repair_is_finished_when_nobody_reads_the_answers(
    begun: Any, queues: list[Queue], redis: Any
) -> None:
    for name in NAMES:
        redis.lpush(f"jobq:{{{name}}}:ready", b"\xff")
    assert begun("check", "fsck", "--repair", "--yes").wait(LIMIT_S) == 141
    assert [queue.admin.fsck() for queue in queues] == [[]] * len(NAMES)


def test_answer_that_is_no_stays_one_when_nobody_reads_it(begun: Any, queues: list[Queue]) -> None:
    missing = begun("cancel", "of-q1", "nothing")
    assert missing.wait(LIMIT_S) == 1
    unknown = begun("nosuch")
    assert unknown.wait(LIMIT_S) == 2


def test_command_runs_when_its_stdout_was_closed_before(
    bare: Path, client: Any, queues: list[Queue]
) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JOBQ_URL": client.url}
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        shell = f'exec "$0" -m jobq events level attempts {closed}'
        ran = subprocess.run(["sh", "-c", shell, sys.executable], env=env, cwd=bare, timeout=LIMIT_S,
                             capture_output=True, text=True)  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, "")
    assert {queue.admin.events_level() for queue in queues} == {"attempts"}
