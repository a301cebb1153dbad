"""Shared parts of the pages of figures: their head, and the marks around generated parts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bench.server import ROOT

END = "<!-- end of the generated part -->"


def begin(command: str) -> str:
    """Return the mark before the output of `command`."""
    return f"<!-- made by {command}: -->"


def put(into: Path, command: str, text: str) -> None:
    """Replace the text between the marks of `command`."""
    before, mark, rest = into.read_text(encoding="utf-8").partition(begin(command))
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{into} has no lines {begin(command)} and {END} to write between")
    into.write_text(f"{before}{mark}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def measure(
    module: str,
    about: str | None,
    tables: Callable[[int, int], Iterable[str]],
    runs: int,
    messages: int = 30_000,
) -> None:
    """Run the command of a module with tables in bench/results/performance.md: print the tables, or write them
    there.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--messages", type=int, default=messages)
    parser.add_argument("--report", action="store_true", help="into bench/results/performance.md")
    chosen = parser.parse_args()
    text = "\n".join(tables(chosen.messages, chosen.runs))
    print(text)
    if chosen.report:
        put(ROOT / "bench" / "results" / "performance.md", f"python -m {module} --report", text)


def head(heads: Sequence[dict[str, str]], remark: str) -> Iterator[str]:
    """Yield the machine and versions of a run, then each part that was measured again."""
    for key, value in heads[0].items():
        yield f"- {key}: {'`' * (key == 'command')}{value}{'`' * (key == 'command')}"
    yield f"- {remark}"
    for again in heads[1:]:
        yield f"- measured again afterwards: `{again['command']}`, {again['date']}, load {again['load at start']}"
