"""`jobq lake`: history that outlives the server; its verbs, each loaded when called."""

from __future__ import annotations

from typing import ClassVar

import click

from jobq.cli.options import LazyGroup


class Lake(LazyGroup):
    """What one does with a lake."""

    verbs: ClassVar[dict[str, str]] = {
        "ingest": "lake_ingest:ingest",
        "stats": "lake_upkeep:stats",
        "check": "lake_upkeep:check",
        "compact": "lake_upkeep:compact",
        "vacuum": "lake_upkeep:vacuum",
        "expire": "lake_upkeep:expire",
        "mark": "lake_upkeep:mark",
        "replay": "lake_replay:replay",
        "audit": "lake_audit:audit",
    }
    removed: ClassVar[dict[str, str]] = {
        "drain": "'jobq lake drain' was removed; run 'jobq worker --burst' on each machine",
    }

    examples = """
        jobq lake ingest --lake ./lake --once
        jobq lake ingest --lake s3://history/jobq --every 30s --trim
        jobq lake stats --lake ./lake
        jobq lake compact --lake ./lake
    """


@click.group("lake", cls=Lake)
def lake() -> None:
    """The history of jobs and topics, kept in a lake that outlives the server: a folder or an S3 bucket."""
