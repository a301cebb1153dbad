"""The pipeline's cases: ingest into a lake, reading and writing with Spark, reports, and the size of an event."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil
import pyarrow as pa

from bench.events import per_attempt
from bench.history import DAY_MS, START_MS, events, fill
from bench.peers.venvs import FOLDER
from bench.server import ROOT, VALKEY, private_server, redis_binary
from jobq import Client
from jobq.client.pipelining import commands
from jobq.events import attempt_record
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import Lake
from jobq.pipeline.lake.ingest import Ingest, IngestOptions
from jobq.pipeline.offsets import LogTail, events_key, events_tails, trim
from jobq.queue.directory import register_queues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[str, float, str]
MASTER, LAKE = "local[2]", FOLDER / "lake"
#: 2.1 events per message: seven rounds are five million events, a batch some 240,000.
MESSAGES, ROUNDS, BATCH = 341_000, 7, 240_000
#: Enqueues of the last minutes of a round end after it.
APART_MS = DAY_MS + 6 * 3_600_000
#: Messages of a batch, and how many such batches the lakes of the case `runs` have.
NEW, OLDER = 100_000, (2, 20)
READ, WRITTEN = 480_000, 400_000
FEW = {"columns": "queue,kind,job,run_us,finished_at"}


def ingest() -> Iterator[Row]:
    """Five million events in seven rounds, each from the streams of a server."""
    with spark_session() as spark, private_server("--maxmemory", "0") as client:
        whole, rates = made_lake(spark, client, ROUNDS)
        for rate in rates[1:]:  # the first run warms up
            yield "ingest, steady", rate, "events/s"
        yield "events ingested", sum(rows for rows, _ in whole), ""


def many_queues(queues: int, each: int = 30) -> Iterator[Row]:
    """Measure a batch of events of many queues in an existing lake: processor time, and the commit's bytes."""
    with private_server("--maxmemory", "0") as client, tempfile.TemporaryDirectory() as folder:
        lake = Lake.create(f"{folder}/lake")
        work = Ingest(lake, client, Engine("local"))
        names = [f"queue-{number:04}" for number in range(queues)]
        register_queues(client, names)
        sizes: list[int] = []
        took: list[float] = []
        for _ in range(5):
            for name in names:
                key = events_key(client.namespace, name)
                now = time.time_ns() // 1_000_000
                run = attempt_record("app.resize", 1, now - 50, 20_000, 9_000, 80_000, "host:1")
                record = f"done\x1f{uuid4().hex}\x1f{now}\x1f{run}"
                commands(client, key, [("XADD", key, "*", "1", record)] * each)
            started = time.process_time()
            found = work.events()
            took.append(time.process_time() - started)
            if found.rows != queues * each:
                raise RuntimeError(f"{found.rows:,} of {queues * each:,} events were ingested")
            newest = max(Path(folder).glob("lake/events/_delta_log/*.json"))
            sizes.append(newest.stat().st_size)
        keys = [events_key(client.namespace, name) for name in names]
        started = time.process_time()
        ends = {
            tail.key: tail.place for tail in events_tails(client, keys) if isinstance(tail, LogTail)
        }
        asked = time.process_time()
        list(trim(client, ends))
        yield f"{queues:,} queues, processor time of the ends", asked - started, "s"
        yield f"{queues:,} queues, processor time of trims", time.process_time() - asked, "s"
        yield f"{queues:,} queues, processor time of a batch", min(took[1:]), "s"
        yield f"{queues:,} queues, largest commit of changes", max(sizes[1:]), "B"
        yield f"{queues:,} queues, commit with all offsets", sizes[0], "B"


def size() -> Iterator[Row]:
    """Return the size of the compacted lake from the case `ingest`."""
    yield "lake, without trace ids", lake_bytes(Lake.open(str(LAKE))), "B/event"


def traced() -> Iterator[Row]:
    """The lake's size with trace ids."""
    with spark_session() as spark, private_server("--maxmemory", "0") as client:
        made_lake(spark, client, 1, traces=True)
        yield "lake, with trace ids", lake_bytes(Lake.open(str(traced_lake()))), "B/event"


def memory() -> Iterator[Row]:
    """Bytes per attempt in streams."""
    for name, binary in (("Redis", redis_binary()), ("Valkey", VALKEY)):
        for what, traces in (("without trace ids", False), ("with trace ids", True)):
            yield f"{name}, {what}", per_attempt(binary, traces)[0], "B/event"


def made_lake(
    spark: SparkSession, client: Client, rounds: int, *, traces: bool = False
) -> tuple[list[tuple[int, float]], list[float]]:
    """Make a lake; return rows and seconds of each batch, and the rates of full batches."""
    path = traced_lake() if traces else LAKE
    shutil.rmtree(path, ignore_errors=True)
    runner = Engine("spark", session=lambda: spark)
    work = Ingest(Lake.create(str(path)), client, runner, IngestOptions(max_rows=BATCH, trim=True))
    batches: list[tuple[int, float]] = []
    for number in range(rounds):
        fill(
            client,
            events(
                MESSAGES, seed=number, days=1, start_ms=START_MS + number * APART_MS, traces=traces
            ),
        )
        batches += timed_batches(work)
    return batches, [rows / seconds for rows, seconds in batches if rows > BATCH // 2]


def timed_batches(work: Ingest) -> Iterator[tuple[int, float]]:
    """Ingest batches until the streams are read."""
    more = True
    while more:
        started = time.perf_counter()
        batch = work.events()
        yield batch.rows, time.perf_counter() - started
        more = batch.more


def lake_bytes(lake: Lake) -> float:
    """Bytes per event of its live files, compacted."""
    jobq("lake", "compact", "--no-rollups", "--lake", lake.store.uri)
    table = lake.table("events")
    assert table is not None
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    nbytes: int = sum(file["size_bytes"] for file in files)
    return nbytes / int(sum(file["num_records"] for file in files))


def reading() -> Iterator[Row]:
    """`spark.read.format("jobq")` of a million events, three times after one to warm up; then of five columns."""
    with spark_session() as spark, private_server("--maxmemory", "0") as client:
        count = fill(client, events(READ))

        def once(**options: str) -> None:
            frame = spark.read.format("jobq").options(url=client.url, **options).load()
            frame.write.format("noop").mode("overwrite").save()

        once()
        for name, options in (("read events", {}), ("read five columns of events", FEW)):
            for _ in range(3):
                yield name, count / seconds(partial(once, **options)), "rows/s"


def writing() -> Iterator[Row]:
    """A DataFrame of two columns into a queue, three times after one to warm up."""
    with spark_session() as spark, private_server("--maxmemory", "0") as client:
        for number in range(4):
            frame = spark.range(WRITTEN, numPartitions=2).selectExpr(
                "id", "concat('user', id, '@example.com') AS to"
            )
            rate = WRITTEN / seconds(partial(enqueue, frame, client.url, f"bench{number}"))
            if number:
                yield "DataFrame to queue", rate, "messages/s"


def enqueue(frame: DataFrame, url: str, queue: str) -> None:
    """Write a DataFrame of calls to a queue."""
    options = {"url": url, "job": "app.mail.send", "queue": queue, "idColumn": "id"}
    frame.write.format("jobq").mode("append").options(**options).save()


def report() -> Iterator[Row]:
    """`jobq report all --html` over the lake that the case `ingest` has left."""
    page = str(FOLDER / "report.html")
    yield "report all", seconds(lambda: jobq(
        "report", "all", "--html", "--lake", str(LAKE), "--since", "2025-11-17T00:00Z",
        "--until", "2025-11-27T00:00Z", "--output", page, "--memory", "3g", "--master", MASTER,
    )), "s"  # fmt: skip


def runs() -> Iterator[Row]:
    """Compare processor time of a refresh after equal numbers of new events, on a lake and on one ten times as big."""
    from jobq.pipeline.lake import rollup

    with spark_session() as spark:
        for older in OLDER:
            folder = FOLDER / f"lake-runs-{older}"
            shutil.rmtree(folder, ignore_errors=True)
            lake = Lake.create(str(folder))
            for number in range(older):
                _append(lake, number, 0)
            rollup.refresh(lake, spark)
            for number in range(3):
                _append(lake, older + number, DAY_MS * (9 + number))
                before = used_s()
                rollup.refresh(lake, spark)
                yield (
                    f"refresh after {NEW:,} messages, beside {older} times as many",
                    used_s() - before,
                    "s of CPU",
                )


def _append(lake: Lake, seed: int, later_ms: int) -> None:
    """Commit a batch of a history of a week, or of a day after it."""
    from jobq.pipeline.lake.commit import commit_batch, state_of
    from jobq.pipeline.lake.files import write_rows
    from jobq.pipeline.lake.tables import EVENTS, to_lake

    days = 1 if later_ms else 7
    [batch] = (
        events(NEW, seed=seed, days=days, start_ms=START_MS + later_ms)
        .combine_chunks()
        .to_batches()
    )
    files = write_rows(lake.below(EVENTS.name), EVENTS, to_lake(batch))
    state = state_of(lake, EVENTS)
    commit_batch(lake, EVENTS, files, state.following({}, batch.num_rows, {}))


def used_s() -> float:
    """The processor time of this process, its JVM and the workers of that, seconds."""
    here = psutil.Process()
    times = [child.cpu_times() for child in (here, *here.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def empty() -> Iterator[Row]:
    """`jobq lake ingest --once` with nothing to do, process and all, after one that may have made rollups."""
    with private_server() as client:
        line = ("lake", "ingest", "--once", "--lake", str(LAKE), "--url", client.url)
        jobq(*line)
        for _ in range(3):
            yield "ingest of nothing", seconds(partial(jobq, *line)), "s"


def traced_lake() -> Path:
    """Return the path of the lake for traces, next to the other lake."""
    return LAKE.with_name("lake-traced")


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Start a session like a user's, on two cores."""
    from jobq.pipeline import session

    spark = session("bench", master=MASTER, memory="2g")
    try:
        yield spark
    finally:
        spark.stop()


def jobq(*arguments: str) -> None:
    """Run a command line in a separate process."""
    command = [sys.executable, "-m", "jobq", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"jobq {' '.join(arguments)}: {ran.stderr.strip()[-800:]}")


def seconds(call: Callable[[], object]) -> float:
    """Return the duration."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


CASES: dict[str, Callable[[], Iterator[Row]]] = {
    "ingest": ingest, "size": size, "traced": traced, "memory": memory, "reading": reading, "writing": writing,
    "report": report, "empty": empty, "runs": runs,
}  # fmt: skip


def main() -> None:
    """Print the figures of many queues."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--queues", type=int, default=3_000, help="how many, 30 events each")
    for name, value, unit in many_queues(arguments.parse_args().queues):
        print(f"{name:50} {value:12,.2f} {unit}")


if __name__ == "__main__":
    main()
