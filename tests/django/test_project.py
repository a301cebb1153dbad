"""D1: a Django project whose tasks run on jobq; on Django 6 with its own framework, on 5.2 with django-tasks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import tools
from tests.waiting import until

django = tools.library("django")
if django.VERSION < (6, 0):
    tools.library("django_tasks")

HERE = Path(__file__).parent / "project"
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120
#: Prints the result of a task, or of each as it is enqueued.
ENQUEUE = """
import django, json, sys
django.setup()
from jobq.django.compat import task_backends
from jobq.django.registered import tasks
from jobq.django.discovery import import_tasks
import_tasks()
def shown(result):
    value = result.return_value if result.status == "SUCCESSFUL" else None
    return json.dumps([result.id, str(result.status), result.attempts, value])
for line in sys.stdin:
    verb, *words = json.loads(line)
    if verb == "get":
        print(shown(task_backends["default"].get_result(words[0])), flush=True)
    else:
        print(shown(tasks.find("orders.tasks." + verb).task.enqueue(*words)), flush=True)
"""

pytestmark = pytest.mark.one_server


class Project:
    """A copy of the project with a database, and the programs that a user starts in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS"))}
        self.env = {
            **kept, "JOBQ_URL": url, "PYTHONPATH": str(ROOT), "DATABASE": str(folder / "db.sqlite3"),
            "DJANGO_SETTINGS_MODULE": "storefront.settings",
        }  # fmt: skip
        self.started: list[subprocess.Popen[str]] = []
        self._shell: subprocess.Popen[str] | None = None

    def manage(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`manage.py …`, to its end."""
        return subprocess.run(
            [sys.executable, "manage.py", *words], cwd=self.folder, env={**self.env, **env},
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """`manage.py …`, which goes on; its log is `log`."""
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *words], cwd=self.folder, env={**self.env, **env},
                text=True, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.started.append(process)
        return process

    def ask(self, verb: str, *words: Any) -> list[Any]:
        """Id, status, attempts and value of the result of a task that is enqueued, or of the one that is got."""
        if self._shell is None:
            self._shell = subprocess.Popen(
                [sys.executable, "-c", ENQUEUE], cwd=self.folder, env=self.env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            self.started.append(self._shell)
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(json.dumps([verb, *words]) + "\n")
        self._shell.stdin.flush()
        answer = self._shell.stdout.readline()
        found: list[Any] = json.loads(answer)
        return found

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def project(server: Any, client: Any, tmp_path: Path) -> Iterator[Project]:
    folder = tmp_path / "project"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    made = Project(folder, server.url)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def test_project_passes_its_tests_and_those_that_django_asks_of_a_backend(project):
    done = project.manage("test", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "Ran 38 tests" in done.stderr


def test_task_of_a_killed_process_runs_again_and_succeeds(project):
    """The result is refreshed while it runs; no child shares a connection with the supervisor, or with another."""
    migrated = project.manage("migrate")
    assert migrated.returncode == 0, migrated.stderr
    first = project.ask("connection_was_open")
    second = project.ask("connection_was_open")
    worker = project.start("jobq", "worker", "--processes", "1", OPEN_AT_IMPORT="yes")

    def succeeded(task: list[Any]) -> list[Any] | None:
        found = project.ask("get", task[0])
        return found if found[1] == "SUCCESSFUL" else None

    [opened, kept] = [
        until(lambda task=task: succeeded(task), lambda: project.log)[3] for task in (first, second)
    ]
    assert (opened, kept) == (False, True)

    task_id, status, attempts, _ = project.ask("waits", str(project.folder))
    assert (status, attempts) == ("READY", 0)
    running = project.folder / "started-1"
    until(lambda: running.exists() and running.read_text(), lambda: project.log)
    until(lambda: project.ask("get", task_id)[1:3] == ["RUNNING", 1], lambda: project.log)
    psutil.Process(int(running.read_text())).send_signal(signal.SIGKILL)
    again = project.folder / "started-2"
    until(lambda: again.exists() and again.read_text(), lambda: project.log)
    assert project.ask("get", task_id)[1:3] == ["RUNNING", 2]
    (project.folder / "go").touch()
    assert until(lambda: succeeded([task_id]), lambda: project.log) == [
        task_id, "SUCCESSFUL", 2, 2,
    ]  # fmt: skip

    checked = project.manage("check", "--deploy", "--tag", "jobq")
    assert "No worker serves" not in checked.stderr, checked.stderr
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(DEADLINE_S) == 0, project.log
    checked = project.manage("check", "--deploy", "--tag", "jobq")
    assert "jobq.W002) Queue 'mails' has no worker" in checked.stderr


def test_commands_of_jobq_know_the_tasks_and_leave_django_its_options(project):
    done = project.manage(
        "jobq", "enqueue", "orders.tasks.product", "4", "--settings", "storefront.settings", "--json",
        "--pythonpath=.", DJANGO_SETTINGS_MODULE="none.such",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    mid = json.loads(done.stdout)["mid"]
    found = project.ask("get", f"default/{mid}")
    assert found[1] == "READY"
    assert project.manage("jobq", "no-such").returncode == 2
