"""Who gets the embedded server: nobody unawares, no test unasked, nobody where it is forbidden."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobq.client.connection import connect
from jobq.client.runtime import runtime
from jobq.config import ServerSettings, settings_from_env
from jobq.errors import ConfigError, EmbeddedError

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = """
import jobq
low = jobq.Queue("low")
low.enqueue(b"v")
jobq.connect().close()
print(len(low.client.queues))
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ran(tmp_path: Path) -> Iterator[Run]:
    """ran("-c", code, JOBQ_EMBEDDED="0"): Python in a folder of its own, as if pytest weren't there."""
    runtime = tempfile.mkdtemp(prefix="jobq-", dir="/tmp")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JOBQ", "REDIS", "PYTEST"))
    }

    def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args], cwd=tmp_path, capture_output=True, text=True, timeout=300,
            env={**kept, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": runtime, **env},
        )  # fmt: skip

    yield run
    run("-m", "jobq", "embedded", "stop")
    shutil.rmtree(runtime)


def test_library_warns_once_when_it_starts_or_joins_the_server(ran: Run, tmp_path: Path) -> None:
    for word in ("started an", "joined the"):
        ended = ran("-c", LIBRARY)
        assert ended.returncode == 0, ended.stderr
        [line] = ended.stderr.splitlines()
        assert line.startswith(f"{word} embedded server at ")
        assert f"data in {tmp_path / '.jobq'}. JOBQ_URL isn't set: " in line
        assert "JOBQ_EMBEDDED=1" in line


def test_library_is_silent_when_the_server_was_asked_for(ran: Run) -> None:
    ended = ran("-c", LIBRARY, JOBQ_EMBEDDED="1")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_command_notes_the_start_and_no_join(ran: Run, tmp_path: Path) -> None:
    ended = ran("-m", "jobq", "enqueue", "a.b", "--mid", "m", "--queue", "default")
    assert ended.stdout == "m  added\n"
    [line] = ended.stderr.splitlines()
    assert line.startswith("started an embedded server at ")
    assert str(tmp_path / ".jobq") in line
    assert ran("-m", "jobq", "status", "m").stderr == ""


def test_worker_says_it_in_its_log_alone(ran: Run) -> None:
    ended = ran("-m", "jobq", "worker", "--burst", "--import", "jobq.chaos.workload")
    assert ended.returncode == 0, ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if "embedded server" in line]
    assert " INFO    started an embedded server at " in line


def test_demo_does_not_warn(ran: Run) -> None:
    # So few files may be done before a child was killed amid one, which the demo itself calls wrong.
    ended = ran("-m", "jobq", "demo", "--files", "20", "--processes", "1")
    assert "jobs done" in ended.stdout, ended.stdout + ended.stderr
    assert "JOBQ_EMBEDDED" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("args", [("-c", LIBRARY), ("-m", "jobq", "queues"), ("-m", "jobq", "demo")])  # fmt: skip
def test_server_is_refused_when_a_variable_forbids_it(
    ran: Run, tmp_path: Path, args: tuple[str, ...]
) -> None:
    ended = ran(*args, JOBQ_EMBEDDED="0")
    assert ended.returncode != 0
    assert "JOBQ_EMBEDDED=0 forbids the embedded server; set JOBQ_URL=redis://" in ended.stderr
    assert not (tmp_path / ".jobq").exists()


def test_variable_forbids_it_to_code_that_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBQ_EMBEDDED", "0")
    with pytest.raises(EmbeddedError, match="JOBQ_EMBEDDED=0 forbids"):
        connect(settings=ServerSettings(embedded=True))
    monkeypatch.setenv("JOBQ_EMBEDDED", "1")
    with pytest.raises(EmbeddedError, match="the settings forbid"):
        connect(settings=ServerSettings(embedded=False))


def test_variable_that_is_neither_yes_nor_no_is_refused() -> None:
    with pytest.raises(ConfigError, match="JOBQ_EMBEDDED='no' is invalid"):
        settings_from_env({"JOBQ_EMBEDDED": "no"})


def test_tests_are_refused_the_server_unless_they_ask_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("JOBQ_URL", "REDIS_URL", "JOBQ_EMBEDDED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EmbeddedError, match="tests don't use the embedded server by default"):
        connect()
    assert not (tmp_path / ".jobq").exists()


def test_pytest_of_a_project_refuses_it_and_takes_it_when_asked(ran: Run, tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text(
        "import jobq, subprocess, sys\n"
        "def test_here():\n    jobq.Queue('low').enqueue(b'v')\n"
        "def test_in_a_process_of_its_own():\n"
        "    subprocess.run([sys.executable, '-m', 'jobq', 'enqueue', 'a.b', '--queue', 'low'], check=True)\n"
    )
    # Other plugins have no part in it, and take seconds to load.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    ended = ran(*command, **alone)
    assert "2 failed" in ended.stdout
    assert "JOBQ_EMBEDDED=1 with JOBQ_DATA" in ended.stdout
    assert not (tmp_path / ".jobq").exists()
    ended = ran(*command, **alone, JOBQ_EMBEDDED="1", JOBQ_DATA=str(tmp_path / "of-tests"))
    assert "2 passed" in ended.stdout, ended.stdout
    ran("-m", "jobq", "embedded", "stop", JOBQ_DATA=str(tmp_path / "of-tests"))


def test_server_is_found_again_in_silence_when_it_was_gone(ran: Run) -> None:
    again = LIBRARY + (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'jobq', 'embedded', 'stop'], check=True)\n"
        "low.enqueue(b'v')\n"
    )
    ended = ran("-c", again)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert runtime.announce is None or callable(runtime.announce)
