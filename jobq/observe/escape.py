"""Text from anywhere, made fit for a terminal or a log: `\\x1b[2J` shows as itself and clears nothing."""

from __future__ import annotations


def escaped(text: str) -> str:
    """`text` on one line, with control and invisible characters written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
