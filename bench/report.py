"""The last run as Markdown: the tables and figures of bench/results/benchmarks.md are written from here.

The page has two parts between separate marks, so that waiting jobs can be measured again separately.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import page
from bench.cases import CASES
from bench.peers import LIMITS, NAMES, PEERS
from bench.peers.venvs import FOLDER
from bench.targets import (
    BESIDE,
    LENGTHS,
    MIXED,
    NAPPING,
    NOOP,
    OF_SERVER,
    OF_WORKER,
    PER_CORE,
    SERVER_COST,
    TARGETS,
    TCP,
    WAIT_TARGETS,
    WAITING,
    Target,
    installed,
    judged,
    shown,
)
from bench.waiting import LIMIT_S

RESULTS = FOLDER / "results.jsonl"
COMMAND = "python -m bench --report"
WAIT_COMMAND = f"{COMMAND}, of jobs that wait"
WAIT_CASES = ("threads", "coroutines", "mixed", "costs")
UVLOOP = ", uvloop"
RECOVERY = "killed worker's job runs again"


class Run(NamedTuple):
    """Results of a run in the file."""

    heads: list[dict[str, str]]
    figures: dict[tuple[str, str], dict[str, Any]]
    failed: list[dict[str, Any]]
    seconds: float


def report(into: Path | None) -> None:
    """Print the tables, or put them between the marks of a file.

    A part that the last run didn't measure doesn't change.
    """
    run = last_run(RESULTS)
    for command, document, is_in in (
        (COMMAND, _document, lambda case: case not in WAIT_CASES),
        (WAIT_COMMAND, _waits, lambda case: case in WAIT_CASES),
    ):
        part = _part(run, is_in)
        if not part.figures:
            continue
        text = "\n".join(document(part))
        if into is None:
            print(text)
        else:
            page.put(into, command, text)


def _part(run: Run, is_in: Callable[[str], bool]) -> Run:
    """Return the results of a run for some cases."""
    figures = {key: line for key, line in run.figures.items() if is_in(line["case"])}
    failed = [one for one in run.failed if one["failed"] not in CASES or is_in(one["failed"])]
    return run._replace(figures=figures, failed=failed)


def last_run(path: Path) -> Run:
    """Return the latest run in a file of results; for repeated figures the later value."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    newest = [line for line in lines if "run" in line]
    newest = [line for line in newest if line["run"] == newest[-1]["run"]]
    figures = {(line["peer"], line["figure"]): line for line in newest if "figure" in line}
    last = {(line["peer"], line[kind]): at for at, line in enumerate(newest)
            for kind in ("case", "peer") if "figure" in line}  # fmt: skip
    return Run(
        [line["head"] for line in newest if "head" in line],
        figures,
        [
            line
            for at, line in enumerate(newest)
            if "failed" in line and at > last.get(_case_of(line), -1)
        ],
        sum(line["seconds"] for line in newest if "seconds" in line),
    )


def _case_of(failure: dict[str, Any]) -> tuple[str, str]:
    """Return the peer and the failed case, or the peer twice if every case failed."""
    peer, case = failure["peer"], failure["failed"]
    return peer, case if case in CASES else peer


def _waits(run: Run) -> Iterator[str]:
    yield from _head(run)
    yield ""
    yield from _targets(run, WAIT_TARGETS)
    for title, note, columns in WAIT_TABLES:
        heading, line, *rows = _table(run, columns)
        if rows:
            yield from ("", f"### {title}", "", note, "", heading, line, *rows)
    yield from _remarks(run)


def _document(run: Run) -> Iterator[str]:
    yield from _head(run)
    yield from ("", "## Against the targets", "")
    yield from _targets(run)
    yield from (
        "",
        "## As installed, and quiet",
        "",
        "Each drain has two rows per system. All other settings are the same in both.",
        "",
    )
    yield from _flags()
    for title, note, columns in TABLES:
        yield from ("", f"## {title}", "")
        if note:
            yield from (note, "")
        yield from _table(run, columns)
    yield from ("", "## jobq beside crowds, and starting", "")
    yield from _own(run)
    yield from (
        "",
        "## Scripts",
        "",
        "By the server's clock, at the default batch limits, in ms.",
        "",
    )
    yield from _scripts(run)
    yield from _remarks(run)


def _head(run: Run) -> Iterator[str]:
    runs = max((line["runs"] for line in run.figures.values()), default=0)
    remark = f"medians of {runs} runs, least and greatest in brackets; {run.seconds / 60:.0f} minutes in all"
    return page.head(run.heads, remark)


def _targets(run: Run, targets: Sequence[Target] = TARGETS) -> Iterator[str]:
    def medians(peer: str, figure: str) -> float | None:
        line = run.figures.get((peer, figure))
        return None if line is None else line["median"]

    yield from ("| case | target | figure | |", "|---|---|---|---|")
    scripts = {name: p99["median"] for name, (_, p99) in _script_rows(run)}
    for row in judged(medians, scripts, targets):
        yield "| " + " | ".join(row) + " |"


#: Title, note, and per column its heading, figure and whether the spread is shown.
Column = tuple[str, str, bool]
TABLES: tuple[tuple[str, str, tuple[Column, ...]], ...] = (
    ("Drain of no-op jobs",
     "CPU in µs per job, with two processes. The server is one thread, so its CPU per job limits the "
     "throughput of all workers together.",
     (("jobs/s, 2 processes", NOOP, True), ("jobs/s, 1 process", "drain no-op, 1 process", True),
      ("worker, µs", f"{NOOP}, CPU of the worker per job", False),
      ("server, µs", f"{NOOP}, CPU of the server per job", False),
      ("Redis commands", f"{NOOP}, Redis commands per job", False))),
    ("Drain of jobs of 1 ms of CPU", "1,000 µs are the job itself; two processes.",
     (("jobs/s", "drain 1 ms CPU, 2 processes", True),
      ("worker, µs", "drain 1 ms CPU, 2 processes, CPU of the worker per job", False),
      ("server, µs", "drain 1 ms CPU, 2 processes, CPU of the server per job", False))),
    ("Enqueue", "", (("one at a time, jobs/s", "enqueue one at a time", True),
                     ("bulk, jobs/s", "enqueue in bulk", True))),
    ("Idle pick-up", "From enqueue to the start of the handler, one idle process, ms.",
     tuple((f"p{share}", f"idle pick-up p{share}", True) for share in (50, 95, 99))),
    ("Wait at half load", "The same, ms, while one process is offered half of what it drained of no-op jobs.",
     (("offered, jobs/s", "offered at half load", False),
      *((f"p{share}", f"wait at half load p{share}", True) for share in (50, 95, 99)))),
    ("Beside 100,000 delayed jobs", "No-op jobs, two processes, while so many others wait for an hour to pass.",
     (("jobs/s", BESIDE.format("100,000"), True), ("without them", NOOP, True))),
    ("Server memory per job", "A job with an int and a short string, B.",
     (("queued", "memory per queued job", False), ("delayed", "memory per delayed job", False))),
    ("The worker", "Two processes. Idle: commands a second, those in scripts too. Recovery: from kill -9 in the "
     f"middle of a job until it runs again, each with its own recovery settings; > {LIMIT_S:.0f}: later or never.",
     (("PSS, MB", "worker of 2 processes, PSS of all", False), ("RSS, MB", "worker of 2 processes, RSS of all", False),
      ("idle, commands/s", "idle, 2 processes, commands", False),
      ("idle, CPU ms/s", "idle, 2 processes, CPU of the worker", False),
      ("first job after start, s", "first job after start of the worker", False), ("recovery, s", RECOVERY, False))),
)  # fmt: skip

WAIT_TABLES: tuple[tuple[str, str, tuple[Column, ...]], ...] = (
    ("In threads", "Two processes with 100 threads each. Memory: each waiting job adds this much to the worker's PSS.",
     (("jobs/s", WAITING, True), ("worker, µs", OF_WORKER.format(WAITING), False),
      ("server, µs", OF_SERVER.format(WAITING), False),
      ("memory per job, KiB", f"{WAITING}, memory of the worker per job", True))),
    ("As coroutines", "Two processes with 100 coroutines each. arq, SAQ and Taskiq run on uvloop.",
     (("jobs/s", NAPPING, True), ("worker, µs", OF_WORKER.format(NAPPING), False),
      ("server, µs", OF_SERVER.format(NAPPING), False))),
    ("Sync jobs beside async ones", "No-op sync jobs in threads, since the worker has async jobs too; two processes.",
     (("jobs/s", MIXED, True), ("worker, µs", OF_WORKER.format(MIXED), False),
      ("server, µs", OF_SERVER.format(MIXED), False),
      ("Redis commands", f"{MIXED}, Redis commands per job", False))),
    ("What a job costs the server",
     "Two processes with 100 threads each; BullMQ: 100 coroutines. CPU of the server in µs for a job with "
     "this wait, and the number of such jobs per second that keep one core of it busy.",
     (*((f"{length}, µs", SERVER_COST.format(length), False) for length in LENGTHS),
      *((f"{length}, jobs/s", PER_CORE.format(length), False) for length in LENGTHS))),
)  # fmt: skip


def _table(run: Run, columns: Sequence[Column]) -> Iterator[str]:
    yield "| | " + " | ".join(heading for heading, _, _ in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    key = columns[0][1]
    for peer in PEERS:
        for figures, how in _rows(run, peer, key):
            cells = [
                _cell(run.figures.get((peer, figures(figure))), spread)
                for _, figure, spread in columns
            ]
            yield f"| {run.figures[peer, key]['name']}{how} | " + " | ".join(cells) + " |"


def _rows(run: Run, peer: str, key: str) -> Iterator[tuple[Callable[[str], str], str]]:
    """Return the prefixes of this peer's rows, and suffixes of its name: also over TCP, where that was measured."""
    for figures, how in _ways(run, peer, key):
        yield figures, how
        if (peer, figures(key) + TCP) in run.figures:
            yield lambda figure, figures=figures: figures(figure) + TCP, how + TCP  # type: ignore[misc]


def _ways(run: Run, peer: str, key: str) -> Iterator[tuple[Callable[[str], str], str]]:
    """Yield the ways in which this peer was measured: a drain has two rows."""
    if (peer, key) not in run.figures:
        return
    if (peer, _loud(key)) in run.figures and peer not in LIMITS:
        yield _loud, ", as installed"
        yield str, ", quiet" if PEERS[peer].quiet else ", quiet (the same)"
    else:
        yield str, ""
    if (peer, key + UVLOOP) in run.figures:
        yield lambda figure: figure.replace(key, key + UVLOOP), UVLOOP


def _loud(figure: str) -> str:
    """Return the figure of a worker as installed; for `drain x, CPU …` that is `drain x, as installed, CPU …`."""
    of = next((part for part in (", CPU of", ", Redis commands") if part in figure), None)
    drained = figure if of is None else figure[: figure.index(of)]
    return installed(drained) + figure.removeprefix(drained)


def _flags() -> Iterator[str]:
    yield from ("| | as installed | quiet |", "|---|---|---|")
    for peer, about in PEERS.items():
        if peer not in LIMITS:
            quiet = about.quiet or "the same: it writes nothing per job"
            yield f"| {NAMES.get(peer, peer)} | its defaults for logging | {quiet} |"


def _cell(line: dict[str, Any] | None, spread: bool) -> str:
    if line is None:
        return ""
    if line["figure"] == RECOVERY and line["median"] >= LIMIT_S:
        return f"> {LIMIT_S:.0f}"
    mark = " †" if line["busy"] else ""
    around = f" ({shown(line['min'])}–{shown(line['max'])})" if spread and line["runs"] > 1 else ""
    return f"{shown(line['median'])}{around}{mark}"


OWN_CASES = (
    "drain1",
    "drain2",
    "cpu1",
    "delayed",
    "delayed1m",
    "due",
    "ready1m",
    "import",
    "idle",
    "size-valkey",
    "leftover",
    "durability",
)


def _own(run: Run) -> Iterator[str]:
    told = {figure for _, _, columns in TABLES for _, figure, _ in columns}
    told |= {_loud(figure) for figure in told}
    yield from ("| figure | median | least | greatest | |", "|---|---|---|---|---|")
    for (peer, figure), line in run.figures.items():
        if peer == "own" and line["case"] in OWN_CASES and figure not in told:
            values = " | ".join(shown(line[key]) for key in ("median", "min", "max"))
            yield f"| {line['figure']}{' †' * line['busy']} | {values} | {line['unit']} |"


def _script_rows(run: Run) -> list[tuple[str, tuple[dict[str, Any], dict[str, Any]]]]:
    names = [
        figure.removeprefix("script ").removesuffix(", p99")
        for _, figure in run.figures if figure.startswith("script ") and figure.endswith(", p99")
    ]  # fmt: skip
    return [
        (
            name,
            (run.figures["own", f"script {name}, p50"], run.figures["own", f"script {name}, p99"]),
        )
        for name in names
    ]


def _scripts(run: Run) -> Iterator[str]:
    yield from ("| script | p50 | p99 |", "|---|---|---|")
    for name, (p50, p99) in _script_rows(run):
        yield f"| {name} | {p50['median']:.3f} | {_cell(p99, True)} |"


def _remarks(run: Run) -> Iterator[str]:
    busy = [line for line in run.figures.values() if line["busy"]]
    if busy:
        most = max(line["others"] for line in busy)
        yield from (
            "",
            f"† Other programs used more than 5 % of the machine's CPU, {most:.0%} at most.",
        )
    for line in run.failed:
        why = line["why"].splitlines()[-1][-160:]
        yield from (
            "",
            f"Not run: {line['peer']}, {line['failed']}, {line['times']} times: `{why}`",
        )
