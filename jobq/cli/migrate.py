"""`jobq migrate`: what a code base of another queue needs to move here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from jobq.cli.options import group, option
from jobq.cli.session import Session, command
from jobq.durations import counted
from jobq.migrate.reading import KINDS, check

COLUMNS = {"same": "equivalent", "differs": "different", "none": "no equivalent"}


@group("migrate", "check src")
def migrate() -> None:
    """Check what a Celery, RQ or Dramatiq code base needs to move here."""


@command("check", "src", "src --only differs,none", "src --json", group=migrate)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@option("--only same,differs,none", "List these only.", default="same,differs,none")
def check_(session: Session, path: Path, only: str) -> bool:
    """List each place that uses Celery, RQ or Dramatiq, and what it becomes in jobq.

    The files are read, and none is imported. Each line has the place, what it uses, whether jobq has an equivalent,
    behaves differently or has none, and the page about it. Exit code 1: something has no equivalent.
    """
    found = check(path)
    wanted = set(only.split(","))
    for finding in found:
        if finding.kind in wanted:
            head = f"{finding.file}:{finding.line}: {finding.what}: {COLUMNS[finding.kind]}"
            session.say(finding, f"{head}: {finding.text} ({finding.page})")
    counts = Counter(finding.kind for finding in found)
    session.note(
        f"{counted(len(found), 'place')}: {', '.join(f'{counts[kind]} {COLUMNS[kind]}' for kind in KINDS)}"
    )
    return not counts["none"]
