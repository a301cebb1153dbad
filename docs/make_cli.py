"""Writes the pages of `docs/reference/cli/` from the commands themselves: `python docs/make_cli.py`."""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from jobq.cli import exits
from jobq.cli.app import SECTIONS, app
from jobq.cli.options import Command, Option, variable_of

FOLDER = Path(__file__).with_name("reference") / "cli"
#: An option that this many commands of a group have alike is described once, at the top of the group's page.
SHARED_BY = 3
#: An option that this many commands of several groups have alike is described once, on the index page.
FREQUENT_IN = 4
OPENING = """# Command line

The command is `jobq`, or `python -m jobq`. Each option also has an environment variable: `JOBQ_DEAD_LIST_LIMIT` sets `jobq dead list --limit`. If an option reads
other variables too, its description names them. [Configuration](../configuration.md) lists all ways to set an option, in order of precedence.

In a synopsis, `[OPTIONS]` stands for the table below it. Options in brackets are described at the top of the page or under [common options](#common-options).
"""


def pages() -> dict[Path, str]:
    """File -> its text: an index, a page for each group of commands, and one for the other commands of each section."""
    texts, index = {}, [OPENING]
    # Commands keep the help option that their first context asks for: it must be the option of the command line.
    with click.Context(app, info_name="jobq", **app.context_settings) as context:
        for section, verbs in SECTIONS.items():
            index.append(f"## {section}\n\n| command | does |\n|---|---|")
            singles = "-".join(section.lower().split())
            for name, verb in verbs.items():
                command = app.get_command(context, name)  # type: ignore[attr-defined]
                page = name if isinstance(command, click.Group) else singles
                opening = (
                    "" if page in texts else f"# {f'jobq {name}' if page == name else section}\n"
                )
                body = "\n".join(_described(command, name, context, alone=page == name))
                texts[page] = texts.get(page, opening) + body + "\n"
                index.append(
                    f"| [`jobq {name}`]({page}.md{'' if page == name else f'#jobq-{name}'}) | {verb.says} |"
                )
            index.append("")
    index.append(
        "## Common options\n\nEvery command takes these options, and no synopsis names them:\n\n| option | meaning |\n|---|---|"
    )
    index += COMMON
    index.append(
        "\nThe following options work only in commands whose synopsis shows them:\n\n| option | meaning |\n|---|---|"
    )
    index += FREQUENT
    index.append("\n## Exit codes\n\n| code | meaning |\n|---|---|")
    index += [f"| {code} | {meaning} |" for code, meaning in sorted(exits.MEANINGS.items())]
    index.append("\n```{toctree}\n:hidden:\n\n" + "\n".join(texts) + "\n```")
    return {
        FOLDER / f"{name}.md": text
        for name, text in {**texts, "index": "\n".join(index) + "\n"}.items()
    }


def _described(
    command: click.Command,
    name: str,
    parent: click.Context,
    *,
    alone: bool = False,
    shared: Mapping[str, str] | None = None,
) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    if not alone:
        yield f"\n## {context.command_path}\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    if shared is None:
        shared = _in_several(command, context)
        if shared:
            yield "## Options of several commands\n\n| option | meaning |\n|---|---|"
            yield "\n".join(shared) + "\n"
    if not isinstance(command, click.Group) or isinstance(command, Command):
        yield from _called(command, context, shared)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            inner_command = command.get_command(context, inner)
            assert inner_command is not None
            yield from _described(inner_command, inner, context, shared=shared)


def _in_several(command: click.Command, context: click.Context) -> dict[str, str]:
    """The rows of options that several commands of a group have, and their flags."""
    counts: Counter[str] = Counter()
    flags: dict[str, str] = {}
    for inner, at in _within(command, context):
        for option in inner.params:
            if isinstance(option, Option) and (row := _row(option, at)) not in (*COMMON, *FREQUENT):
                counts[row] += 1
                flags[row] = max(option.opts, key=len)
    return {row: flags[row] for row, number in counts.items() if number >= SHARED_BY}


def _within(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield a group's commands and their contexts, including the commands of nested groups."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            inner_context = click.Context(inner, info_name=name, parent=context)
            yield inner, inner_context
            yield from _within(inner, inner_context)


def _called(
    command: click.Command, context: click.Context, shared: Mapping[str, str]
) -> Iterator[str]:
    """Yield the synopsis of a command, the table of its own options, and its examples."""
    options = [option for option in command.params if isinstance(option, Option)]
    described = {**FREQUENT, **shared}
    all_rows = [_row(option, context) for option in options]
    rows = [row for row in all_rows if row not in (*COMMON, *described)]
    elsewhere = [f"[{described[row]}]" for row in all_rows if row in described]
    first, *rest = command.collect_usage_pieces(context)
    assert first == "[OPTIONS]"
    pieces = [context.command_path, *([first] if rows else []), *elsewhere, *rest]
    yield f"```text\n{' '.join(pieces)}\n```\n"
    if rows:
        yield "| option | meaning |\n|---|---|"
        yield from rows
        yield ""
    examples = [line.strip() for line in getattr(command, "examples", "").strip().splitlines()]
    yield "```\n" + "\n".join(examples) + "\n```"


def _row(option: Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    own = variable_of(f"{context.command_path.partition(' ')[2]} {max(option.opts, key=len)}")
    others = [f"`{name}`" for name in option.variables(context) if name != own]
    also = f" Also read: {', '.join(others)}." if others else ""
    return f"| {names} | {_text(option)}{also} |"


def _text(option: Option) -> str:
    shown: Any = option.default if option.show_default is True else option.show_default
    shown = ", ".join(shown) if isinstance(shown, tuple) else shown
    default = f" [default: {shown}]" if shown else ""
    return ((option.help or "") + default).replace("|", "\\|")


def _all_rows() -> Iterator[tuple[str, str, str]]:
    """Yield the row of every option of every command, its flag, and its group or single command."""
    with click.Context(app, info_name="jobq", **app.context_settings) as context:
        for command, at in _within(app, context):
            group = at.command_path.split()[1]
            for option in command.params:
                if isinstance(option, Option):
                    yield _row(option, at), max(option.opts, key=len), group


_GROUPS: defaultdict[str, list[str]] = defaultdict(list)
_FLAGS: dict[str, str] = {}
for _line, _flag, _group in _all_rows():
    _GROUPS[_line].append(_group)
    _FLAGS[_line] = _flag
COMMON = [row for row, flag in _FLAGS.items() if flag in {"--url", "--namespace", "--json"}]
COMMON = [row for row in COMMON if len(_GROUPS[row]) > 50]
FREQUENT = {
    row: flag
    for row, flag in sorted(_FLAGS.items(), key=lambda item: -len(_GROUPS[item[0]]))
    if row not in COMMON and len(_GROUPS[row]) >= FREQUENT_IN and len({*_GROUPS[row]}) > 1
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
