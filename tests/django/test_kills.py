"""D1 at length, on PostgreSQL: processes are killed at random while they run hundreds of tasks."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests import databases, tools
from tests.django.test_project import DEADLINE_S, Project, until

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.skipif(not os.environ.get("JOBQ_DJANGO"), reason="a minute: part of make soak"),
]
TASKS, KILLS = 1_000, 25


def test_tasks_of_killed_processes_run_again_and_all_succeed(project: Project, short_folder: Path):
    tools.library("psycopg")
    if databases.postgresql_programs() is None:
        tools.not_run("not run: needs postgresql")
    server = databases.PostgresqlServer(short_folder / "django")
    try:
        where = {"NAME": "postgres", "USER": "postgres", "HOST": str(server.folder)}
        project.env["POSTGRESQL"] = json.dumps(where)
        migrated = project.manage("migrate")
        assert migrated.returncode == 0, migrated.stderr
        kill_while_tasks_run(project)
    finally:
        server.stop()


def kill_while_tasks_run(project: Project) -> None:
    words = ("jobq", "worker", "--processes", "2", "--crash-limit", "1000")
    worker = project.start(*words, OPEN_AT_IMPORT="yes")
    enqueued = [project.ask("add_named", f"order {number}")[0] for number in range(TASKS)]
    dice = random.Random(1)
    for _ in range(KILLS):
        children = until(lambda: psutil.Process(worker.pid).children(), lambda: project.log)
        dice.choice(children).send_signal(signal.SIGKILL)
        time.sleep(dice.uniform(0, 0.6))

    deadline = time.monotonic() + DEADLINE_S
    results = {}
    for task_id in enqueued:
        while (found := project.ask("get", task_id))[1] != "SUCCESSFUL":
            assert time.monotonic() < deadline, (found, project.log[-5_000:])
            assert found[1] != "FAILED", (found, project.log[-5_000:])
        results[task_id] = found
    assert worker.poll() is None
    again = sum(found[2] - 1 for found in results.values())
    assert again > 0, "no kill hit a task"
    # Each connection to the database belongs to one process.
    pairs = {tuple(found[3]) for found in results.values()}
    assert len({backend for _, backend in pairs}) == len(pairs)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(DEADLINE_S) == 0
