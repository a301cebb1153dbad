"""Commands of optional parts: their place in the help, and their messages without the packages of their extra."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jobq.cli import exits
from jobq.cli.app import COMMANDS, CORE, SECTIONS
from jobq.cli.optional import OPTIONAL


def test_help_lists_optional_commands_at_their_places_among_those_of_the_core(line: Any) -> None:
    shown = line("--help").out
    listed = re.findall(r"^(\S[\w ]*):$|^  ([a-z-]+) {2,}\S", shown, re.MULTILINE)
    names = [heading or name for heading, name in listed]
    assert names[names.index("Queues") : names.index("Try it") + 4] == [
        "Queues", "queue", "partitions", "key", "dead", "limit", "events", "flow", "schedule", "web", "outbox",
        "metrics", "audit-log", "check",
        "Other protocols", "topic", "reliable", "rsmq", "ruby",
        "History", "lake", "report", "spark",
        "Server", "embedded", "functions", "completion", "acl",
        "Try it", "demo", "migrate", "chaos",
    ]  # fmt: skip


def test_every_optional_command_stands_in_a_section_and_before_a_command_that_the_core_has() -> (
    None
):
    for section, before in OPTIONAL:
        assert section in CORE
        assert not before or before in CORE[section]
    registered = [name for verbs in OPTIONAL.values() for name in verbs]
    assert {*registered} == {*COMMANDS}.difference(*CORE.values())


def without(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `jobq report` fail as if it imported this module, which isn't there."""

    def fail(ctx: Any) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("jobq.cli.report.report.invoke", fail)


def test_command_says_what_to_install_when_a_package_of_its_extra_is_missing(
    line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    without("pyarrow.parquet", monkeypatch)
    ended = line("report", "dead")
    assert ended.code == exits.USAGE
    assert re.fullmatch(
        r"jobq: report needs pyarrow; pip install .*'pyarrow>=[\d.]+' \(the extra lake\)\n",
        ended.err,
    ), ended.err


@pytest.mark.parametrize("module", ["jobq.pipeline.no_such", "prometheus_client", "app.jobs"])
def test_command_fails_as_usual_when_the_missing_module_is_none_of_its_extra(
    line: Any, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    without(module, monkeypatch)
    ended = line("report", "dead")
    assert ended.code == exits.FAILED
    assert f"No module named '{module}'" in ended.err
    assert "pip install" not in ended.err


def test_extras_of_commands_are_those_of_the_project() -> None:
    named = {verb.extra for verbs in SECTIONS.values() for verb in verbs.values()}
    assert named == {"", "lake", "metrics", "spark", "web"}
