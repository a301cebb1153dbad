"""Print the demo's steps with their times, and its figures with their required values."""

from __future__ import annotations

import time

import click


class Steps:
    """Print each step's start, result and duration in seconds."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def begin(self, text: str) -> None:
        """Print the start of a step."""
        click.echo(f"\n{text}")
        self._at = time.monotonic()

    def say(self, text: str, each: int = 0, unit: str = "") -> None:
        """Print a step's result, its duration and its rate per second."""
        now = time.monotonic()
        seconds, self._at = now - self._at, now
        rate = f"  {each / seconds:>9,.0f} {unit}/s" if each else ""
        click.echo(f"    {text:<70}{seconds:6.1f} s{rate}")


class Figures:
    """Collect figures and their required values."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, int, int]] = []

    def add(self, name: str, figure: int, wanted: int) -> None:
        """Add a figure and its required value."""
        self._rows.append((name, figure, wanted))

    def told(self) -> bool:
        """Print the figures; return whether all have their required values."""
        click.echo(f"\n    {'':<56}{'is':>10}{'must be':>10}")
        for name, figure, wanted in self._rows:
            wrong = "" if figure == wanted else "   WRONG"
            click.echo(f"    {name:<56}{figure:>10,}{wanted:>10,}{wrong}")
        return all(figure == wanted for _, figure, wanted in self._rows)
