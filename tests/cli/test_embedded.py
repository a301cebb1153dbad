"""`jobq embedded`, and commands that start it by themselves."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import pytest

from jobq.embedded.program import usable


@pytest.fixture
def project(bare: Any, monkeypatch: pytest.MonkeyPatch, line: Any) -> Any:
    """A project folder without a server."""
    runtime = tempfile.mkdtemp(prefix="jobq-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("JOBQ_EMBEDDED", "1")
    (bare / "pyproject.toml").touch()
    yield bare
    line("embedded", "stop")
    shutil.rmtree(runtime, ignore_errors=True)


def test_status_and_stop_say_that_it_does_not_run(project: Any, line: Any) -> None:
    ended = line("embedded", "status")
    assert (ended.code, ended.out.split(";")[0]) == (1, "not running")
    assert line("embedded", "stop").code == 1
    assert not (project / ".jobq").exists()


def test_command_without_url_starts_it_and_the_next_joins(project: Any, line: Any) -> None:
    assert line("enqueue", "a.b", "--queue", "low", "--mid", "m").out == "m  added\n"
    ended = line("status", "m")
    assert ended.out.startswith("m: queued")
    [status] = line("embedded", "status", "--json").records
    assert status["running"]
    assert status["data"] == str(project / ".jobq")
    assert line("embedded", "stop", "--json").records == [{"stopped": True}]
    assert line("embedded", "status").code == 1
    assert line("status", "m").out.startswith("m: queued")


def test_status_exits_with_1_in_json_too_when_nothing_runs(project: Any, line: Any) -> None:
    ended = line("embedded", "status", "--json")
    assert (ended.code, ended.records[0]["running"]) == (1, False)
    ended = line("embedded", "stop", "--json")
    assert (ended.code, ended.records) == (1, [{"stopped": False}])


def test_status_and_stop_exit_with_0_when_it_runs(project: Any, line: Any) -> None:
    line("enqueue", "a.b", "--queue", "low")
    assert line("embedded", "status", "--json").code == 0
    assert line("embedded", "status").code == 0
    assert line("embedded", "stop").code == 0


@pytest.mark.parametrize("kind", ["Valkey", "Redis"])
def test_status_names_the_kind_of_the_server(
    project: Any, line: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    programs = [program.path for program in usable() if program.kind.lower() == kind.lower()]
    if not programs:
        pytest.skip(f"no {kind} is installed here")
    monkeypatch.setenv("JOBQ_SERVER", programs[0])
    assert line("enqueue", "a.b", "--queue", "low").code == 0
    assert line("embedded", "status").out.startswith(f"running: {kind} ")
