"""Defaults from pyproject.toml, and the order of precedence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from jobq.cli import app, settings
from jobq.cli.options import Option

FILE = """
[tool.jobq]
url = "redis://from-file"
queues = ["high:6", "low"]
imports = ["app.jobs", "app.mail"]

[tool.jobq.worker]
max-jobs = 7
url = "redis://from-table"

[tool.jobq.dead.list]
limit = 3
"""


@pytest.fixture
def parsed(bare: Path) -> Callable[..., dict[str, Any]]:
    """parsed("dead", "list"): the parameters a command line comes to, by their keys."""

    def parse(*words: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with app.app.make_context("jobq", list(words)) as ctx:
            app.app.callback and ctx.invoke(app.app.callback)
            command: click.Command = app.app
            rest = list(words)
            while isinstance(command, click.Group):
                name, inner, rest = command.resolve_command(ctx, rest)
                assert inner is not None
                ctx, command = inner.make_context(name, rest, parent=ctx), inner
            for parameter in command.params:
                if isinstance(parameter, Option):
                    found[parameter.key] = ctx.params[parameter.name or ""]
        return found

    return parse


def test_file_of_the_nearest_folder_above_is_read(
    bare: Path, parsed: Any, monkeypatch: Any
) -> None:
    (bare / "pyproject.toml").write_text(FILE)
    (bare / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(bare / "deep" / "er")
    assert parsed("pause", "low")["url"] == "redis://from-file"


def test_shared_key_reaches_every_command_that_has_the_option(bare: Path, parsed: Any) -> None:
    (bare / "pyproject.toml").write_text(FILE)
    assert parsed("status", "m")["queues"] == "high:6,low"
    assert parsed("dead", "revive", "m")["queues"] == "high:6,low"
    assert parsed("worker")["import"] == ("app.jobs", "app.mail")


def test_table_of_a_command_wins_over_shared_keys(bare: Path, parsed: Any) -> None:
    (bare / "pyproject.toml").write_text(FILE)
    assert parsed("worker")["url"] == "redis://from-table"
    assert parsed("worker")["max_jobs"] == 7
    assert parsed("dead", "list")["limit"] == 3
    assert parsed("queue", "peek")["limit"] == 100


def test_flag_wins_over_variables_over_file_over_default(
    bare: Path, parsed: Any, monkeypatch: Any
) -> None:
    assert parsed("queues")["url"] is None
    (bare / "pyproject.toml").write_text(FILE)
    assert parsed("queues")["url"] == "redis://from-file"
    monkeypatch.setenv("REDIS_URL", "redis://redis-url")
    assert parsed("queues")["url"] == "redis://redis-url"
    monkeypatch.setenv("JOBQ_URL", "redis://jobq-url")
    assert parsed("queues")["url"] == "redis://jobq-url"
    monkeypatch.setenv("JOBQ_QUEUES_URL", "redis://own")
    assert parsed("queues")["url"] == "redis://own"
    assert parsed("queues", "--url", "redis://flag")["url"] == "redis://flag"


def test_import_variable_holds_several_modules(parsed: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("JOBQ_IMPORT", "app.jobs,app.mail other")
    assert parsed("worker")["import"] == ("app.jobs", "app.mail", "other")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[tool.jobq]\nquues = "low"', "no key 'quues'"),
        ("[tool.jobq.worker]\nlese = 3", "no option 'lese'"),
        ("[tool.jobq]\nworker = 3", "worker = 3 is not a table; write options of worker below"),
        ("[tool.jobq", "can't be read"),
    ],
)
def test_mistake_in_the_file_is_named(bare: Path, line: Any, text: str, words: str) -> None:
    (bare / "pyproject.toml").write_text(text)
    ended = line("worker", "--processes", "0")
    assert ended.code == 2
    assert (
        words in ended.err and ended.err.startswith("jobq: ") and len(ended.err.splitlines()) == 1
    )


def test_file_without_a_section_says_nothing(bare: Path) -> None:
    path = bare / "pyproject.toml"
    path.write_text('[project]\nname = "x"')
    found = settings.nearest(bare).project
    assert found and settings.read_project(found) == {}
