"""Writes summaries of measurements into the documentation, from the tables in `bench/results/`: `python docs/make_benchmarks.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
#: After the names of systems that reached the server over TCP.
TCP = ", TCP"
BEGIN, END = "<!-- made by docs/make_benchmarks.py -->\n\n", "\n<!-- end -->\n"
#: Heading of the summary -> the table's section in the results, and its column.
COLUMNS = {
    "no-op jobs/s": ("Drain of no-op jobs", "jobs/s, 2 processes"),
    "jobs of 1 ms/s": ("Drain of jobs of 1 ms of CPU", "jobs/s"),
    "enqueues/s": ("Enqueue", "one at a time, jobs/s"),
    "pick-up, ms": ("Idle pick-up", "p50"),
    "bytes in Redis": ("Server memory per job", "queued"),
    "killed job runs again, s": ("The worker", "recovery, s"),
}


def table(text: str, section: str) -> dict[str, dict[str, str]]:
    """Return the cells of a section's first table, by row and column; medians without their ranges."""
    part = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", part, re.MULTILINE)
    ]
    plain = [
        [re.sub(r" \(.*\)| †.*", "", cell) if number else cell for number, cell in enumerate(row)]
        for row in rows
    ]
    return {
        row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in plain if len(row) == len(head)
    }


def compared() -> Iterator[str]:
    """Yield a table with a row for each system, then the number of reached targets."""
    text = (RESULTS / "benchmarks.md").read_text(encoding="utf-8")
    tables = {heading: table(text, section) for heading, (section, _) in COLUMNS.items()}
    systems = [
        name.split(", ")[0] for name in tables["no-op jobs/s"] if name.endswith(", as installed")
    ]
    yield f"| | {' | '.join(COLUMNS)} |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for system in systems:
        cells = []
        for heading, (_, column) in COLUMNS.items():
            rows = tables[heading]
            names = (system, f"{system}, quiet", f"{system}, quiet (the same)")
            row = next((name for name in names if name in rows), "")
            known = [rows[name][column] for name in (row, row + TCP) if name in rows]
            cells.append(worse(heading, [cell for cell in known if cell]) or "–")
        yield f"| {system} | {' | '.join(cells)} |"
    missed = len(re.findall(r"\| \*\*missed\*\*", text))
    reached = len(re.findall(r"\| reached", text))
    yield (
        f"\nThe last run reached {reached} of {reached + missed} targets; its tables mark the missed targets."
    )


def worse(heading: str, cells: list[str]) -> str:
    """Return the worse figure of a unix socket and TCP, where both were measured."""
    numbers = {float(cell.strip("> ").replace(",", "")): cell for cell in cells if cell != "–"}
    if not numbers:
        return ""
    return numbers[min(numbers) if heading.endswith("/s") else max(numbers)]


def costs() -> Iterator[str]:
    """Yield what a job costs the server, once it was measured."""
    text = (RESULTS / "benchmarks.md").read_text(encoding="utf-8")
    part = text.partition("\n### What a job costs the server\n")[2]
    if rows := re.findall(r"^\|.*\|$", part.partition("\n#")[0], re.MULTILINE):
        yield "\nThe server's CPU time per job, for jobs waiting 1 ms, 20 ms or 1 s, and how many of these jobs one core of the server can handle per second:\n"
        yield from rows


def day() -> Iterator[str]:
    """Yield the costs of a day of events in the lake."""
    text = (RESULTS / "scale.md").read_text(encoding="utf-8")
    yield "\n".join(re.findall(r"^\| a day of.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL))


def fleet() -> Iterator[str]:
    """Yield the needs of several servers and of many idle workers."""
    text = (RESULTS / "fleet.md").read_text(encoding="utf-8")
    tables = re.findall(
        r"^\| (?:servers \||idle hosts of).*?(?=\n\n)", text, re.MULTILINE | re.DOTALL
    )
    yield "\n\n".join(tables)


def pages() -> dict[Path, str]:
    """Return each page with its summary as it should be."""
    made = {
        ROOT / "docs" / "internals" / "benchmarks.md": chain(compared(), costs()),
        ROOT / "docs" / "data" / "scale.md": day(),
        ROOT / "docs" / "operating" / "scaling.md": fleet(),
    }
    texts = {}
    for path, lines in made.items():
        before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
        texts[path] = before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]
    return texts


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
