"""`jobq migrate`: list the changes needed to move from another job queue."""

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
    """Check what a Celery, RQ or Dramatiq code base needs to move to jobq."""


@command("check", "src", "src --only differs,none", "src --json", group=migrate)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@option("--only same,differs,none", "Only findings of these kinds.", default="same,differs,none")
def check_(session: Session, path: Path, only: str) -> bool:
    """List each use of Celery, RQ or Dramatiq with its equivalent in jobq.

    Files are parsed, never imported. Each line shows the place in the code, the feature, whether jobq supports the
    feature, and a page about the feature. Exit code 1: a feature has no equivalent.
    """
    findings = check(path)
    wanted = set(only.split(","))
    for finding in findings:
        if finding.kind in wanted:
            head = f"{finding.file}:{finding.line}: {finding.what}: {COLUMNS[finding.kind]}"
            session.say(finding, f"{head}: {finding.text} ({finding.page})")
    counts = Counter(finding.kind for finding in findings)
    session.note(
        f"{counted(len(findings), 'place')}: {', '.join(f'{counts[kind]} {COLUMNS[kind]}' for kind in KINDS)}"
    )
    return not counts["none"]
