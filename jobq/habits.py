"""Names that people know from other job queues, with the names to use in jobq instead; see `habits.txt`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Never


@cache
def _table() -> dict[tuple[str, str], str]:
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
    """Return the advice for a name from another job queue; '' if the name is unknown."""
    return _table().get((section, name), "")


def refuse_attribute(self: Any, name: str) -> Never:
    """Raise AttributeError, with advice for names from other job queues. Public classes use this as `__getattr__`."""
    kind = type(self)
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        known = (remedy(base.__name__, name) for base in kind.__mro__)
        if hint := next(filter(None, known), ""):
            job = vars(self).get("__name__", "job") if hasattr(self, "__dict__") else "job"
            # If Python knew the object, it would append a guess to the advice.
            raise AttributeError(f"{text}; {hint.replace('{job}', job)}", name=name)
    raise AttributeError(text, name=name, obj=self)
