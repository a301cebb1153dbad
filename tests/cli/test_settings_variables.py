"""Variables that jobq doesn't read are said, each once, with the nearest name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jobq import variables
from jobq.cli.app import COMMANDS, app
from jobq.cli.settings import options, unknown
from jobq.config import settings_from_env
from tests.test_house import tracked

ROOT = Path(__file__).resolve().parents[2]
#: Names of settings of Django, which no environment has.
DJANGO_SETTINGS = {"JOBQ_DASHBOARD"}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the warnings already printed by this process."""
    monkeypatch.setattr(variables, "_said", set())


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("JOBQ_ULR", "JOBQ_URL"), ("JOBQ_NAMESPCE", "JOBQ_NAMESPACE"), ("JOBQ_DURABILTY", "JOBQ_DURABILITY"),
     ("JOBQ_CODEC_KEY", "JOBQ_CODEC_KEYS"), ("JOBQ_EMBEDED", "JOBQ_EMBEDDED")],
)  # fmt: skip
def test_library_warns_once_with_the_nearest_name(
    caplog: pytest.LogCaptureFixture, name: str, nearest: str
) -> None:
    for _ in range(2):
        settings_from_env({name: "secret", "JOBQ_WORKER_PROCESSES": "2", "OTHER": "x"})
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"jobq doesn't read the variable {name}; did you mean {nearest}?"
    )


def test_command_warns_once_with_the_nearest_option(process: Any, client: Any) -> None:
    env = {"JOBQ_URL": client.url, "JOBQ_WORKER_PROCESES": "4", "JOBQ_LOG_LEVL": "x", "JOBQ_Z9": ""}
    ended = process("queues", env=env)
    assert ended.code == 0
    assert ended.err.splitlines()[:3] == [
        "jobq: jobq doesn't read the variable JOBQ_LOG_LEVL; did you mean JOBQ_WORKER_LOG_LEVEL?",
        "jobq: jobq doesn't read the variable JOBQ_WORKER_PROCESES; did you mean JOBQ_WORKER_PROCESSES?",
        "jobq: jobq doesn't read the variable JOBQ_Z9; docs/reference/configuration.md lists the variables of jobq",
    ]


def test_variable_of_every_option_is_known() -> None:
    names = set(options(app))
    assert len(names) > 400
    assert unknown(app, dict.fromkeys(names, "")) == []


def test_commands_are_those_of_the_command_line() -> None:
    assert tuple(COMMANDS) == variables.COMMANDS


def test_shared_variables_are_known_without_loading_a_command() -> None:
    prefixes = tuple(f"JOBQ_{name.upper().replace('-', '_')}_" for name in COMMANDS)
    shared = {name for name in options(app) if not name.startswith(prefixes)}
    assert shared - {"REDIS_URL"} <= variables.KNOWN


def test_every_variable_that_the_project_names_is_known() -> None:
    named = {
        name
        for path in tracked()
        if path.suffix in (".py", ".md", ".toml", "", ".rb", ".mjs") and path != Path(__file__) and path.is_file()
        for name in re.findall(r"\bJOBQ_[A-Z0-9_]*[A-Z0-9]\b(?!_)", path.read_text(errors="replace"))
    }  # fmt: skip
    assert len(named) > 20
    assert unknown(app, dict.fromkeys(named - DJANGO_SETTINGS, "")) == []
