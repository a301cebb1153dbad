"""How the pipeline's demo tells what it does: steps with their times, and figures beside what they must be."""

from __future__ import annotations

import time

import click


class Steps:
    """Says what begins, and what came of it with the seconds that it took."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def begin(self, text: str) -> None:
        """A step."""
        click.echo(f"\n{text}")
        self._at = time.monotonic()

    def say(self, text: str, each: int = 0, unit: str = "") -> None:
        """A result, and how many each second that makes."""
        now = time.monotonic()
        seconds, self._at = now - self._at, now
        rate = f"  {each / seconds:>9,.0f} {unit}/s" if each else ""
        click.echo(f"    {text:<70}{seconds:6.1f} s{rate}")


class Figures:
    """What came out beside what must."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, int, int]] = []

    def add(self, name: str, found: int, wanted: int) -> None:
        """One figure."""
        self._rows.append((name, found, wanted))

    def told(self) -> bool:
        """Print them; whether all are what they must be."""
        click.echo(f"\n    {'':<56}{'is':>10}{'must be':>10}")
        for name, found, wanted in self._rows:
            wrong = "" if found == wanted else "   WRONG"
            click.echo(f"    {name:<56}{found:>10,}{wanted:>10,}{wrong}")
        return all(found == wanted for _, found, wanted in self._rows)
