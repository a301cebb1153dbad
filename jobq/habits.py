"""Names of other queues that people try in jobq, and what to write instead; `habits.txt` has the table."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Never


@cache
def _table() -> dict[tuple[str, str], str]:
    """Return the remedy of each name, by section."""
    remedies: dict[tuple[str, str], str] = {}
    section = ""
    text = Path(__file__).with_name("habits.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        names, _, remedy = line.partition("  ->  ")
        if line.startswith("["):
            section = line.strip("[]")
        elif remedy:
            remedies |= {(section, name): remedy for name in names.split()}
    return remedies


def remedy(section: str, name: str) -> str:
    """Return what to write instead of a name of another queue; '' if the name is unknown."""
    return _table().get((section, name), "")


def refuse_attribute(self: Any, name: str) -> Never:
    """Raise AttributeError, with a remedy if another queue has the attribute: the `__getattr__` of a public class."""
    kind = type(self)
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        known = (remedy(base.__name__, name) for base in kind.__mro__)
        if hint := next(filter(None, known), ""):
            job = vars(self).get("__name__", "job") if hasattr(self, "__dict__") else "job"
            # Python would add a guess to the remedy if it knew the object.
            raise AttributeError(f"{text}; {hint.replace('{job}', job)}", name=name)
    raise AttributeError(text, name=name, obj=self)
