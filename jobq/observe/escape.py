"""Make untrusted text safe for a terminal or a log, so that `\x1b[2J` is printed and doesn't clear the screen."""

from __future__ import annotations


def escaped(text: str) -> str:
    """Return `text` on one line, with control and invisible characters written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
