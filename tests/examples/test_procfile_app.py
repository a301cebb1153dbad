"""`examples/procfile_app`, started by honcho; and the Procfile of the project."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import pytest

from jobq.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_processes_of_the_procfile_work_together(run, until, tmp_path):
    journal = tmp_path / "journal"
    journal.touch()
    env = {"JOURNAL": str(journal), "ORDERS": "3", "EVERY_S": "0.05", "PYTHONUNBUFFERED": "1"}
    honcho = run("-m", "honcho", "start", env=env, cwd=ROOT / "examples" / "procfile_app")
    until(lambda: len(journal.read_text().splitlines()) >= 6)
    honcho.send_signal(signal.SIGTERM)
    said, _ = honcho.communicate(timeout=300)

    wanted = [f"{word} {number}" for word in ("invoice", "order") for number in (1, 2, 3)]
    assert sorted(journal.read_text().splitlines()) == wanted, said


@pytest.mark.parametrize(
    "line",
    [
        *(ROOT / "Procfile").read_text().splitlines(),
        *(ROOT / "examples" / "procfile_app" / "Procfile").read_text().splitlines(),
    ],
)
def test_every_line_starts_something_that_exists(line, capsys):
    name, _, command = line.partition(": ")
    words = shlex.split(command)
    assert name
    if words[0] == "jobq":
        assert main([*words[1:], "--help"]) == 0
        assert "Run jobs" in capsys.readouterr().out
    else:
        assert (ROOT / "examples" / "procfile_app" / words[1]).is_file()
