"""Variables of the environment, checked against the options of every command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from jobq import variables
from jobq.cli.options import Option


def unknown(app: click.Group, environ: Mapping[str, str]) -> list[str]:
    """A sentence for each JOBQ_… that no setting and no option reads. Loads the commands if it must."""
    names = [name for name in environ if name.startswith(variables.PREFIX)]
    if variables.KNOWN.issuperset(names):
        return []
    return variables.unknown(names, variables.KNOWN.union(options(app)))


def options(app: click.Group) -> Iterator[str]:
    """The variables of every option there is."""
    with click.Context(app, info_name="jobq", auto_envvar_prefix="JOBQ") as context:
        yield from _of(app, context)


def _of(command: click.Command, context: click.Context) -> Iterator[str]:
    for one in command.params:
        if isinstance(one, Option):
            yield from one.variables(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _of(inner, click.Context(inner, info_name=name, parent=context))
