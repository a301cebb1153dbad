"""The rules of `rules.txt`: jobq's equivalent of each feature of Celery, RQ and Dramatiq."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple


class MigrationRule(NamedTuple):
    """Advice for replacing Celery, RQ or Dramatiq features that match `pattern`.

    Attributes:
        kind: `same`, `differs` or `none`; see MigrationFinding.
    """

    pattern: re.Pattern[str]
    kind: str
    text: str


@cache
def rules() -> dict[str, list[MigrationRule]]:
    """Return the rules for each library (Celery, RQ or Dramatiq), in the order of `rules.txt`."""
    by_system: dict[str, list[MigrationRule]] = {}
    system: list[MigrationRule] = []
    for line in Path(__file__).with_name("rules.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            system = by_system.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            pattern, _, answer = line.partition("  ->  ")
            kind, _, text = answer.partition(": ")
            system.append(MigrationRule(re.compile(pattern), kind, text))
    return by_system


def rule_for(system: str, line: str) -> MigrationRule | None:
    """Return the first rule that matches a feature, or None."""
    return next((rule for rule in rules()[system] if rule.pattern.fullmatch(line)), None)
