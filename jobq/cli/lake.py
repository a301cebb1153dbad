"""`jobq lake`: history that outlives the server; its verbs, each loaded when called."""

from __future__ import annotations

from importlib import import_module

import click

from jobq.cli.options import Group

#: Verb -> module and name of its command.
COMMANDS: dict[str, str] = {
    "ingest": "lake_ingest:ingest",
    "stats": "lake_upkeep:stats",
    "check": "lake_upkeep:check",
    "compact": "lake_upkeep:compact",
    "vacuum": "lake_upkeep:vacuum",
    "expire": "lake_upkeep:expire",
    "mark": "lake_upkeep:mark",
    "replay": "lake_replay:replay",
    "audit": "lake_audit:audit",
    "drain": "lake_drain:drain",
}


class Lake(Group):
    """Loads a verb's module when it is asked for."""

    examples = """
        jobq lake ingest --lake ./lake --once
        jobq lake ingest --lake s3://history/jobq --every 30s --trim
        jobq lake stats --lake ./lake
        jobq lake compact --lake ./lake
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        found = getattr(import_module(f"jobq.cli.{module}"), name)
        assert isinstance(found, click.Command)
        return found


@click.group("lake", cls=Lake)
def lake() -> None:
    """The history of jobs and topics, kept in a lake that outlives the server: a folder or an S3 bucket."""
