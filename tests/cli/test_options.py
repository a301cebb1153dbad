"""The help of every command: its purpose, a variable for every option, examples at the end."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from jobq.cli import app, exits
from jobq.cli.options import Option

EVERYWHERE = ("url", "namespace", "json")
WITHOUT_SERVER = ("demo",)


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name), found


ALL = dict(commands(app.app))
LEAVES = {path: command for path, command in ALL.items() if not isinstance(command, click.Group)}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_ends_with_examples_of_this_command(line: Any, path: tuple[str, ...]) -> None:
    ended = line(*path, "--help")
    assert ended.code == 0
    before, heading, examples = ended.out.partition("Examples:\n")
    assert heading and before
    lines = [text for text in examples.splitlines() if text.strip()]
    assert lines and all(text.startswith(f"  {' '.join(('jobq', *path))}") for text in lines), (
        examples
    )


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_names_its_variables_in_the_help(line: Any, path: tuple[str, ...]) -> None:
    shown = re.sub(r"\s+", " ", line(*path, "--help").out)
    for option in LEAVES[path].params:
        if isinstance(option, click.Option) and option.name != "help":
            assert isinstance(option, Option), option.name
            variable = "_".join(("JOBQ", *path, option.key)).upper().replace("-", "_")
            assert variable in shown
            assert option.help


@pytest.mark.parametrize("path", [p for p in LEAVES if p[0] not in WITHOUT_SERVER], ids=" ".join)
def test_every_command_has_the_options_of_all(path: tuple[str, ...]) -> None:
    keys = [option.key for option in LEAVES[path].params if isinstance(option, Option)]
    assert set(EVERYWHERE) <= set(keys)


@pytest.mark.parametrize("name", app.COMMANDS)
def test_line_in_the_help_of_all_is_what_the_command_says(name: str) -> None:
    [verb] = [verbs[name] for verbs in app.SECTIONS.values() if name in verbs]
    assert verb.says == ALL[(name,)].get_short_help_str(limit=200)


def test_names_of_later_features_are_free() -> None:
    assert not {"django"} & {*app.COMMANDS}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_examples_parse(bare: Path, path: tuple[str, ...]) -> None:
    (bare / "calls.jsonl").touch()
    (bare / "src").mkdir()
    examples = getattr(ALL[path], "examples", "")
    for example in filter(None, (text.strip() for text in examples.splitlines())):
        words = shlex.split(re.split(r" [|<] |   +", example)[0])[1:]
        # The example of a group is one of a command in it.
        named = max((known for known in ALL if tuple(words[: len(known)]) == known), key=len)
        assert named in LEAVES or not words[len(named) :] or words[len(named)][:2] == "--", example
        with ALL[named].make_context(" ".join(named), words[len(named) :]):
            pass


def test_help_of_all_lists_exit_codes_and_the_promise(line: Any) -> None:
    shown = line("--help").out
    assert "at least once" in shown
    for code in exits.MEANINGS:
        assert re.search(rf"^  {code} ", shown, re.MULTILINE)


def test_unknown_command_and_option_are_usage_errors(line: Any) -> None:
    assert line("quues").code == 2
    assert line("queues", "--wach").code == 2


def test_short_option_that_is_unknown_may_be_an_id(line: Any) -> None:
    assert "begins with -J, put -- before it" in line("status", "-J170bE_EKimhm").err
    assert "put -- before" not in line("status", "--jsn", "m").err


def test_version_is_told(line: Any) -> None:
    assert re.fullmatch(r"jobq \d\S*\n", line("--version").out)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("quues",), "'queues' or 'queue'"),
        (("dead", "lst"), "'list'"),
        (("queue", "pek"), "'peek'"),
        (("doctor",), "'check doctor'"),
    ],
)
def test_unknown_command_names_those_with_similar_names(line: Any, words: Any, near: str) -> None:
    ended = line(*words)
    assert ended.code == exits.USAGE
    assert f"No such command {words[-1]!r}. Did you mean {near}" in ended.err


def test_unknown_command_names_nothing_when_no_name_is_similar(line: Any) -> None:
    assert "Did you mean" not in line("xyzzy").err
