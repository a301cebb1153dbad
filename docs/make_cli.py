"""Writes `docs/reference/cli.md` from the commands themselves: `python docs/make_cli.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from jobq.cli import exits
from jobq.cli.app import COMMANDS, app
from jobq.cli.options import Command, Option

PAGE = Path(__file__).with_name("reference") / "cli.md"
OPENING = """# Command line

The command is `jobq`, or `python -m jobq`. The value of an option comes from its flag, else from its variables in the order given here, else from its key in
`[tool.jobq]` or `[tool.jobq.<command>]` of the nearest pyproject.toml, else it is the default. Durations: `500ms`, `30s`, `5 min`, `1h30m`, `2d`, `1w`, `PT15M`.

```toml
[tool.jobq]
imports = ["app.jobs"]
queues = "high:6,low"

[tool.jobq.worker]
processes = 4
```

jobq reads a pyproject.toml only if you or root own the file and its folder, and nobody else can write to either. A folder that
everybody can write to, such as `/tmp`, is never trusted. Nothing above your home or above a mount point is read. A file with a
`[tool.jobq]` that isn't read changes nothing, and stderr says why. `JOBQ_PYPROJECT=/srv/app/pyproject.toml` names the file to read,
with any owner. `--import` takes no module from a working folder that everybody can write to.

These variables have no option:

| variable | meaning |
|---|---|
| `JOBQ_PATIENCE` | how long a call is repeated while the server is away or silent: 10s in these commands, 2s in programs; a call that may have arrived, 5 minutes at most |
| `JOBQ_EMBEDDED` | 0 forbids the embedded server; 1 uses it without a warning and under pytest |
| `JOBQ_DATA` | where the embedded server keeps its data |
| `JOBQ_EMBEDDED_IDLE` | how long the embedded server runs without clients, 10m |
| `JOBQ_SERVER` | the program to start as the embedded server or for tests; by default `valkey-server` or `redis-server` on the `PATH`, or the extra `embedded` |
| `JOBQ_FUNCTIONS` | 1 calls the functions that `jobq functions load` loaded |
| `JOBQ_CODEC`, `JOBQ_CODEC_KEYS`, `JOBQ_CODEC_VALID`, `JOBQ_CODEC_ACCEPT_PLAIN` | [signed and encrypted calls](../operating/security.md) |
| `JOBQ_DURABILITY`, `JOBQ_DURABLE_WITHIN` | [what must hold before an enqueue returns](../operating/durability.md) |
| `JOBQ_OUTAGE_BUFFER` | messages that may wait in memory [while Redis is down](../operating/redis-is-down.md#the-outage-buffer) |
| `JOBQ_MAX_CONTENT` | the largest call, in bytes |
| `NO_COLOR` | no colours |

A `JOBQ_…` variable that jobq doesn't read is reported with the nearest name that it reads.
"""


def page() -> str:
    """The whole page."""
    parts = [OPENING, "## Exit codes\n", "| code | meaning |\n|---|---|"]
    parts += [f"| {code} | {meaning} |" for code, meaning in sorted(exits.MEANINGS.items())]
    # Commands keep the help option that their first context asks for: it must be the one of the command line.
    with click.Context(app, info_name="jobq", **app.context_settings) as context:
        for name in COMMANDS:
            command = app.get_command(context, name)  # type: ignore[attr-defined]
            parts += _described(command, name, context)
    return "\n".join(parts) + "\n"


def _described(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"\n## jobq {name}\n" if parent.parent is None else f"\n### {parent.info_name} {name}\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    if not isinstance(command, click.Group) or isinstance(command, Command):
        yield from _called(command, context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _described(found, inner, context)


def _called(command: click.Command, context: click.Context) -> Iterator[str]:
    """How a command is called."""
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"`{context.command_path} {pieces}`\n"
    options = [one for one in command.params if isinstance(one, Option)]
    yield "| option | variables | |\n|---|---|---|"
    for one in options:
        yield _row(one, context)
    examples = [line.strip() for line in getattr(command, "examples", "").strip().splitlines()]
    yield "\n```\n" + "\n".join(examples) + "\n```"


def _row(one: Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in one.opts)
    variables = " ".join(f"`{name}`" for name in one.variables(context))
    return f"| {names} | {variables} | {_text(one)} |"


def _text(one: Option) -> str:
    shown: Any = one.default if one.show_default is True else one.show_default
    shown = ", ".join(shown) if isinstance(shown, tuple) else shown
    default = f" [default: {shown}]" if shown else ""
    return ((one.help or "") + default).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
