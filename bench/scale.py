"""`python -m bench.scale`: cost per event in lakes of 1, 5 and 50 million, extrapolated to billions a day.

Each lake is one day in eight queues, made file by file as an ingest makes them. Then each command runs in a
separate process. Its CPU seconds and its largest process are measured, including child processes. New events, a
fifth of the lake's, are ingested from streams of a server. The cost of an event is the slope between two lakes, so
that the start of Python and of a JVM, which costs the same at every size, isn't included.

The refresh of job_runs and rollup_hourly after one million further events is measured for each lake: it must cost
the same for a large lake. Each run has a separate JVM, which has first refreshed the same small lake. The lakes
take turns, the first turn from the smallest, the next from the largest, and the least of the runs counts.

Measurements are kept by size and step. --report writes all of them into bench/results/scale.md.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from bench.history import DAY_MS, QUEUES, START_MS, events, fill
from bench.machine import SAMPLE_S, adopt_orphans, bury_orphans, described
from bench.page import head, put
from bench.peers.venvs import FOLDER
from bench.pipeline import spark_session, used_s
from bench.server import ROOT, info, private_server, server_s
from jobq.events import MAXLENS
from jobq.pipeline.lake import Lake, rollup
from jobq.pipeline.lake.commit import commit_batch, state_of
from jobq.pipeline.lake.files import DataFile, live_files, write_rows
from jobq.pipeline.lake.tables import EVENTS, JOB_RUNS, LakeTable, to_lake
from jobq.queue.queue import Queue

RESULTS = FOLDER / "scale.json"
PAGE = ROOT / "bench" / "results" / "scale.md"
COMMAND = "python -m bench.scale --report"
MILLION = 1_000_000
SIZES = (1, 5, 50)
#: Events of a batch when a lake is made, and of a file; the share of a lake that is ingested afterwards.
BATCH, FILE, NEW = 1_000_000, 100_000, 5
PER_MESSAGE = 2.095
MASTER = "local[2]"
#: Assumptions of a plan: busy share of cores, seconds between two ingests, bytes of a compacted file, cores of an
#: executor.
BUSY, EVERY_S, FILE_BYTES, CORES = 0.5, 30, 128 * 1024 * 1024, 4
DAYS = (10**8, 10**9, 10**10)
STEPS = {
    "ingest": "of a fifth as many new events, from streams",
    "compact": "sort and join the day's files",
    "check": "read every file, look for doubled rows",
    "rollup": "`job_runs` and `rollup_hourly`, for the first time",
    "report": "`jobq report all --html`",
}
ON_SPARK = ("rollup", "report")
#: Measured separately from the other steps, for the same number of events in each lake: repetitions, and the events
#: of the small lake.
REFRESH, TURNS, SMALL = "refresh", 2, 200_000
WHOLE_DAY = (0.0, 1.0)
WEIGHTS = {
    "Redis": "in a stream of Redis", "lake, ingested": "in the lake, as ingested",
    "lake, compacted": "in the lake, compacted", "job_runs": "in `job_runs`, for each event",
    "server": "CPU of the server for the ingest, in µs instead of bytes",
}  # fmt: skip


class Spent(NamedTuple):
    """Resources of a command.

    Attributes:
        python, java: Bytes of the largest process of each kind.
    """

    cpu_s: float
    wall_s: float
    python: int
    java: int


def measured(size: int, engine: str, steps: list[str], known: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a lake with this many million events, including known figures."""
    path = FOLDER / "scale"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    lake = Lake.create(str(path / "lake"))
    found: dict[str, Any] = {"bytes": {}, "steps": {}, **known, "events": made(lake, size)}
    sizes = found["bytes"]
    sizes["lake, ingested"] = per_row(lake, EVENTS)
    if "ingest" in steps:
        _note(found, "ingest", engine, *ingested(path, size, engine, sizes))
    place = ("--lake", lake.store.uri, "--master", MASTER)
    for name, line in {
        "compact": ("lake", "compact", "--no-rollups", *place, "--engine", engine),
        "check": ("lake", "check", *place, "--engine", engine),
        "rollup": ("lake", "compact", *place),
        "report": (
            "report", "all", "--html", *place, "--since", "2025-11-17T00:00Z", "--until", "2025-11-19T00:00Z",
            "--output", str(path / "report.html"), "--memory", "2g",
        ),
    }.items():  # fmt: skip
        if name in steps:
            used = "spark" if name in ON_SPARK else engine
            _note(found, name, used, found["events"], spent(*line))
    if "compact" in steps:
        sizes["lake, compacted"] = per_row(lake, EVENTS)
    if "rollup" in steps:
        runs = sum(file.size for file in live_files(lake.table(JOB_RUNS.name)))
        sizes["job_runs"] = runs / found["events"]
    shutil.rmtree(path)
    return found


def _note(found: dict[str, Any], name: str, engine: str, count: int, one: Spent) -> None:
    found["steps"][name] = {"events": count, "engine": engine, **one._asdict()}
    print(
        f"{found['events']:,} events, {name}: {one.cpu_s / count * MILLION:.2f} µs of CPU an event, {one.cpu_s:.1f} s "
        f"in all; Python {one.python >> 20} MiB, Java {one.java >> 20} MiB", flush=True,
    )  # fmt: skip


def made(lake: Lake, size: int) -> int:
    """Write the lake as an ingest of batches leaves it, without a server; return the number of events."""
    return sum(
        appended(lake, part=(number / size, (number + 1) / size), seed=number, apart=number)
        for number in range(size)
    )


def appended(
    lake: Lake, *, part: tuple[float, float], seed: int, day: int = 0, apart: int = 0, count: int = BATCH
) -> int:  # fmt: skip
    """Commit about `count` events from one part of a day, like an ingest; return their number.

    Args:
        apart: Attempts of one part end in the next part. With different numbers, events of a queue have different
            positions.
    """
    table = events(
        round(count / PER_MESSAGE), seed=seed, days=1, part=part, start_ms=START_MS + day * DAY_MS
    )
    seq = pc.add(table["entry_seq"], pa.scalar(apart * 100_000, pa.int32()))
    at = table.schema.get_field_index("entry_seq")
    [batch] = table.set_column(at, table.schema.field(at), seq).combine_chunks().to_batches()
    rows = to_lake(batch)
    files: list[DataFile] = []
    for first in range(0, rows.num_rows, FILE):
        files += write_rows(lake.below(EVENTS.name), EVENTS, rows.slice(first, FILE))
    state = state_of(lake, EVENTS)
    commit_batch(lake, EVENTS, files, state.following({}, rows.num_rows, {}, bad=0, remade=[]))
    return rows.num_rows


def refreshed(sizes: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Measure the refresh after a million new events, for a lake of each size."""
    path = FOLDER / "scale"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    older: dict[int, int] = {}
    with spark_session() as spark:
        for size in (0, *sizes):
            lake = Lake.create(str(path / str(size)))
            count = BATCH if size else SMALL
            older[size] = (
                made(lake, size) if size else appended(lake, part=WHOLE_DAY, seed=0, count=count)
            )
            # Each lake has some hours and lives of the day of the new events, which a refresh merges with theirs.
            older[size] += appended(lake, part=WHOLE_DAY, seed=10_000, day=1, count=SMALL)
            rollup.refresh(lake, spark)
            new = appended(lake, part=WHOLE_DAY, seed=20_000, day=1, apart=1, count=count)
    runs: dict[int, list[Spent]] = {size: [] for size in sizes}
    for turn in range(TURNS):
        for size in sizes[:: -1 if turn % 2 else 1]:
            lakes = [str(path / str(one)) for one in (0, size)]
            line = [sys.executable, "-m", "bench.scale", "--refresh", *lakes]
            done = subprocess.run(line, cwd=ROOT, stdout=subprocess.PIPE, check=True)
            runs[size].append(Spent(*json.loads(done.stdout.splitlines()[-1])))
            cpu = runs[size][-1].cpu_s
            print(f"refresh beside {older[size]:,} events: {cpu:.1f} s of CPU", flush=True)
    for size, some in runs.items():
        step = {"events": new, "older": older[size], "engine": "spark", **min(some)._asdict()}
        yield size, step
    shutil.rmtree(path)


def refreshed_once(small: Path, path: Path) -> Spent:
    """Return the cost of refreshing a copy of a lake, after refreshing a copy of a small lake in the same session."""
    with spark_session() as spark, TemporaryDirectory(dir=FOLDER) as folder:
        for one in (small, path):
            copy = Path(folder, one.name)
            shutil.copytree(one, copy)
            lake = Lake.open(str(copy))
            before, started = used_s(), time.monotonic()
            rollup.refresh(lake, spark)
            spent = Spent(used_s() - before, time.monotonic() - started, 0, 0)
        return spent


def ingested(path: Path, size: int, engine: str, sizes: dict[str, float]) -> tuple[int, Spent]:
    """Ingest new events into a copy of the lake; return their number and the cost."""
    with private_server("--maxmemory", "0") as client:
        before = int(info(client, "memory")["used_memory"])
        new = round(size * MILLION / NEW / PER_MESSAGE)
        count = fill(client, events(new, seed=10_000, days=1, start_ms=START_MS + 2 * DAY_MS))
        # Else the ingest would exit with 1: streams that are longer than they may be can lose events.
        for name in QUEUES:
            Queue(name, client).admin.events_maxlen(MAXLENS[1])
        sizes["Redis"] = (int(info(client, "memory")["used_memory"]) - before) / count
        copy = path / "copy"
        shutil.copytree(path / "lake", copy)
        used = server_s(client)
        one = spent(
            "lake", "ingest", "--once", "--lake", str(copy), "--url", client.url, "--engine", engine,
            "--master", MASTER, "--rollup", "0",
        )  # fmt: skip
        sizes["server"] = (server_s(client) - used) / count * MILLION
        rows = sum(
            file.rows for file in live_files(Lake.open(str(copy)).table(EVENTS.name), "2025-11-19")
        )
        assert rows == count, f"{rows:,} of {count:,} events are there"
        shutil.rmtree(copy)
        return count, one


def per_row(lake: Lake, table: LakeTable) -> float:
    """Return bytes of the live files per row."""
    files = live_files(lake.table(table.name))
    return sum(file.size for file in files) / max(1, sum(file.rows for file in files))


def spent(*arguments: str) -> Spent:
    """Run a command line; return its cost, including child processes."""
    command = [sys.executable, "-m", "jobq", *arguments]
    others = {child.pid for child in psutil.Process().children()}
    before, started = _cpu_s(), time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    python = java = 0
    with process.stdout, process.stderr:  # type: ignore[union-attr]
        while process.poll() is None:
            for name, size in _sizes(process.pid):
                java = max(java, size) if name == "java" else java
                python = max(python, size) if name.startswith("python") else python
            time.sleep(SAMPLE_S)
        if process.returncode:
            text = process.stderr.read().decode()  # type: ignore[union-attr]
            raise RuntimeError(f"jobq {' '.join(arguments)}: {text.strip()[-800:]}")
    wall = time.monotonic() - started
    # The JVM outlives its parent by a moment.
    while {child.pid for child in psutil.Process().children()} - others:
        bury_orphans()
        time.sleep(0.05)
    return Spent(_cpu_s() - before, wall, python, java)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sizes(pid: int) -> Iterator[tuple[str, int]]:
    with suppress(psutil.Error):
        first = psutil.Process(pid)
        for child in (first, *first.children(recursive=True)):
            with suppress(psutil.Error):
                yield child.name(), child.memory_info().rss


def slope(less: Mapping[str, Any], more: Mapping[str, Any]) -> float:
    """Return µs of CPU per additional event of the larger lake."""
    return float((more["cpu_s"] - less["cpu_s"]) / (more["events"] - less["events"]) * MILLION)


def document(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures and the plan as Markdown."""
    sizes = sorted(found["sizes"].values(), key=lambda one: one["events"])
    yield from head(found["heads"], "each command once; CPU of all its processes")
    yield from ("", *costs(sizes), "", *refreshes(sizes), "", *weights(sizes), "", *plan(sizes))


def costs(sizes: list[dict[str, Any]]) -> Iterator[str]:
    """A row per step and size: CPU, the slope from the size before, and memory."""
    yield "| step | engine | events | CPU s | µs per further event | largest Python process | Java |"
    yield "|---|---|---|---|---|---|---|"
    for name, about in STEPS.items():
        before: dict[str, Any] | None = None
        for step in _of(sizes, name):
            more = "" if before is None else f"{slope(before, step):.2f}"
            java = f"{step['java'] >> 20:,} MiB" if step["java"] else ""
            what = f"{name}: {about}" if before is None else ""
            yield (
                f"| {what} | {step['engine']} | {step['events'] / MILLION:.1f} M | {step['cpu_s']:.1f} | {more} | "
                f"{step['python'] >> 20:,} MiB | {java} |"
            )
            before = step


def refreshes(sizes: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a row per size of lake: the cost of the same number of new events, relative to the smallest lake."""
    found = [size[REFRESH] for size in sizes if REFRESH in size]
    if not found:
        return
    yield "| refresh after one million new events, beside a lake of | CPU s | times that of the smallest |"
    yield "|---|---|---|"
    for step in found:
        times = step["cpu_s"] / found[0]["cpu_s"]
        yield f"| {step['older'] / MILLION:.1f} M | {step['cpu_s']:.1f} | {times:.2f} |"


def _of(sizes: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [size["steps"][name] for size in sizes if name in size["steps"]]


def _slope_of(sizes: list[dict[str, Any]], name: str) -> float:
    """Return the slope between the step's two largest measured sizes."""
    steps = _of(sizes, name)
    if len(steps) < 2:
        raise SystemExit(f"{name} was measured at one size; run python -m bench.scale 1 5")
    return max(0.0, slope(steps[-2], steps[-1]))


def weights(sizes: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a row per kind of bytes, from the largest measured lake."""
    yield from ("| | bytes per event |", "|---|---|")
    for name, about in WEIGHTS.items():
        yield f"| {about} | {_weight(sizes, name):.1f} |"


def _weight(sizes: list[dict[str, Any]], name: str) -> float:
    return next(float(size["bytes"][name]) for size in reversed(sizes) if name in size["bytes"])


def plan(sizes: list[dict[str, Any]]) -> Iterator[str]:
    """Yield requirements for several numbers of events a day, from the slopes between the two largest lakes."""
    each = {name: _slope_of(sizes, name) for name in STEPS}
    steps = [step for name in STEPS for step in _of(sizes, name)]
    python, java = (max(step[kind] for step in steps) for kind in ("python", "java"))
    weight = {name: _weight(sizes, name) for name in WEIGHTS}
    cores = [max(1, math.ceil(day * sum(each.values()) / MILLION / 86_400 / BUSY)) for day in DAYS]
    rows = {
        "events a second, evenly spread": [f"{day / 86_400:,.0f}" for day in DAYS],
        **{
            f"CPU hours, {name}": [f"{day * micros / MILLION / 3600:,.1f}" for day in DAYS]
            for name, micros in each.items()
        },
        f"cores, {BUSY:.0%} of them busy": [f"{number:,}" for number in cores],
        f"memory of executors with up to {CORES} cores, GiB": [
            f"{(number * python + math.ceil(number / CORES) * java) / 2**30:,.0f}" for number in cores
        ],
        f"commits of the ingest, one per {EVERY_S} s or million events": [
            f"{max(86_400 // EVERY_S, day // MILLION):,}" for day in DAYS
        ],
        "files before and after compaction": [
            f"{max(86_400 // EVERY_S, day // FILE):,}, {math.ceil(day * weight['lake, compacted'] / FILE_BYTES):,}"
            for day in DAYS
        ],
        "lake with `job_runs`, GB": [
            f"{day * (weight['lake, compacted'] + weight['job_runs']) / 1e9:,.0f}" for day in DAYS
        ],
        "Redis, GB per hour that streams keep": [f"{day / 24 * weight['Redis'] / 1e9:,.1f}" for day in DAYS],
        "Redis, part of one core that the ingest takes": [
            f"{day / 86_400 * weight['server'] / MILLION:.1%}" for day in DAYS
        ],
    }  # fmt: skip
    yield f"| a day of | {' | '.join(f'{day:,} events' for day in DAYS)} |"
    yield f"|---|{'---|' * len(DAYS)}"
    for name, cells in rows.items():
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measure lakes of these sizes; or write known figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, metavar="MILLIONS", default=SIZES)
    parser.add_argument("--engine", default="local", choices=("local", "spark"))
    known = (*STEPS, REFRESH)
    parser.add_argument("--steps", default=",".join(known), help="comma-separated")
    parser.add_argument("--report", action="store_true", help="only write known figures")
    parser.add_argument("--refresh", nargs=2, type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.refresh:
        print(json.dumps(refreshed_once(*chosen.refresh)))
        return
    steps = chosen.steps.split(",")
    if unknown := set(steps) - set(known):
        parser.error(f"no step {', '.join(sorted(unknown))}; take of {', '.join(known)}")
    loaded: dict[str, Any] = {"heads": [], "sizes": {}}
    if RESULTS.exists():
        loaded = json.loads(RESULTS.read_text())
    if not chosen.report:
        adopt_orphans()
        loaded["heads"].append(described("bench.scale"))
        FOLDER.mkdir(exist_ok=True)
        for size in chosen.sizes if set(steps) & set(STEPS) else ():
            before = loaded["sizes"].get(str(size), {})
            loaded["sizes"][str(size)] = measured(size, chosen.engine, steps, before)
            for name, weight in loaded["sizes"][str(size)]["bytes"].items():
                print(f"{weight:.1f} {WEIGHTS[name]}", flush=True)
            RESULTS.write_text(json.dumps(loaded))
        for size, step in refreshed(sorted(chosen.sizes)) if REFRESH in steps else ():
            empty = {"events": step["older"], "steps": {}, "bytes": {}}
            loaded["sizes"].setdefault(str(size), empty)[REFRESH] = step
            RESULTS.write_text(json.dumps(loaded))
        return
    text = "\n".join(document(loaded))
    print(text)
    put(PAGE, COMMAND, text)


if __name__ == "__main__":
    main()
