"""`jobq lake drain`: a backlog worked off by Spark's executors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from jobq.cli import exits
from jobq.cli.options import DURATION, command, import_option, option, queues_option
from jobq.cli.session import Session
from jobq.cli.spark import master_option
from jobq.config import ServerSettings
from jobq.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobq.engine.message import Counts
    from jobq.pipeline.drain import Drain, Drained
    from jobq.pipeline.drain_counts import Counted

LEASE_S = 15.0
TOLD_EVERY_S = 5.0
#: A lost executor is no fault of the drain; one that can never run ends it after so many tries.
MAX_FAILURES = 16
#: Settings that hold for this machine, or for the workers that run on it, alone.
_LOCAL = (
    "JOBQ_DATA",
    "JOBQ_EMBEDDED",
    "JOBQ_PYPROJECT",
    "JOBQ_LAKE",
    "JOBQ_JSON",
    "JOBQ_SPARK_",
    "JOBQ_WORKER_",
)
_HEADINGS = {
    "executor": "executor", "workers": "workers", "done": "done", "retried": "retried", "dead": "dead",
    "crashed": "crashed", "busy s": "busy_s",
}  # fmt: skip


@command(
    "drain",
    examples="""
        jobq lake drain --queues low --import app.jobs
        jobq lake drain --queues low --import app.jobs --master spark://head:7077 --executors 40 --processes 4
        jobq lake drain --queues low --import app.jobs --for 30m --env DATABASE_URL
    """,
)
@queues_option
@import_option
@master_option
@option(
    "--executors",
    type=click.IntRange(1),
    help="Workers at once.  [default: one per core of the master]",
)
@option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Children of each worker, and cores it takes.",
)
@option(
    "--for",
    "--max-time",
    "max_time",
    type=DURATION,
    metavar="DURATION",
    key="for",
    help="Take nothing more after this time.  [default: until the queues are empty]",
)
@option("--lease", type=DURATION, default="15s", show_default=True, help="As of jobq worker.")
@option(
    "--env",
    "names",
    multiple=True,
    metavar="NAME",
    help="A variable of here that the jobs need, too; repeat for more.",
)
@option(
    "--py-files",
    "files",
    multiple=True,
    metavar="FILE",
    help="A .py, .zip or .whl with modules to bring along; repeat for more.",
)
@option(
    "--conf",
    "conf",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of Spark; repeat for more.",
)
@option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Of the workers.",
)
def drain(session: Session, queues: str | None, modules: tuple[str, ...], **given: Any) -> int:
    """Run the jobs of a backlog on Spark's executors until the queues are empty.

    Each executor runs 'jobq worker --burst', so jobs run at least once, as in any worker. Messages with a
    backoff that isn't over aren't waited for. Exit code 1: ready ones are left, or an executor failed.
    """
    from jobq.pipeline.drain import Drain, Wanted

    if not modules:
        raise ConfigError("no module with jobs is named; give --import app.jobs")
    signal.signal(signal.SIGTERM, _terminated)
    found = session.queues(queues)
    if not found:
        raise ConfigError("there is no queue here yet; name one by --queues")
    # A server that isn't there is told before a JVM is started for it.
    counts = [queue.counts() for queue in found]
    if not any(one.ready or one.locked or one.delayed for one in counts):
        session.say({"done": 0, "left": []}, "nothing to do: the queues are empty")
        return exits.OK
    environ = environment(session.client.settings, session.client.url, given["names"])
    spark, executors = _spark(given)
    args = _worker_args([queue.name for queue in found], modules, given)
    wanted = Wanted(args, environ, executors, given["lease"], given["max_time"] or 0.0)
    try:
        return _drained(session, Drain(spark, found, wanted), executors)
    finally:
        _stop(spark)


def _drained(session: Session, one: Drain, executors: int) -> int:
    session.note(f"{one.name}: {executors} workers at once")
    try:
        return _show(session, one.run(_progress(session)))
    except PipelineError as error:
        for line in "\n".join(getattr(error, "__notes__", ())).splitlines():
            session.note(line)
        raise


def _stop(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:
        return  # its JVM is gone, and that was told


def _worker_args(
    queues: Sequence[str], modules: Sequence[str], given: dict[str, Any]
) -> tuple[str, ...]:
    args = ["worker", "--burst", "--queues", ",".join(queues)]
    for module in modules:
        args += ["--import", module]
    args += ["--processes", str(given["processes"]), "--lease", f"{given['lease']:g}s"]
    return (*args, "--log-level", given["log_level"])


def environment(settings: ServerSettings, url: str, names: Sequence[str]) -> dict[str, str]:
    """The variables that a worker needs to reach the same server with the same keys."""
    env = {
        key: value
        for key, value in os.environ.items()
        if key.startswith("JOBQ_") and not key.startswith(_LOCAL)
    }
    env |= {"JOBQ_URL": url, "JOBQ_NAMESPACE": settings.namespace}
    for name in names:
        if name not in os.environ:
            raise ConfigError(
                f"--env {name}: there is no such variable here; set it, or leave it out"
            )
        env[name] = os.environ[name]
    return env


def _spark(given: dict[str, Any]) -> tuple[SparkSession, int]:
    """The session, and how many workers it is to run at once."""
    from jobq.pipeline.sessions import cores, session

    processes, executors, master = given["processes"], given["executors"], given["master"]
    conf = {"spark.task.maxFailures": str(MAX_FAILURES), "spark.speculation": "false"}
    master = master or "local[*]"
    here = None if master.startswith("local-cluster") else cores(master)
    if here is not None:
        executors = executors or max(1, here // processes)
        # local[n] alone would give up at the first executor lost.
        master = f"local[{executors},{MAX_FAILURES}]"
    else:
        conf |= _cluster(processes, executors)
    conf |= _settings(given["conf"])
    spark = session("jobq lake drain", master=master, fast=here is not None, conf=conf)
    for file in given["files"]:
        spark.sparkContext.addPyFile(file)
    return spark, executors or max(1, spark.sparkContext.defaultParallelism // processes)


def _cluster(processes: int, executors: int | None) -> dict[str, str]:
    """Settings that give each worker an executor, where a number of them is asked for, and its cores."""
    conf = {"spark.task.cpus": str(processes)}
    if executors is None:
        return conf
    return conf | {
        "spark.executor.cores": str(processes), "spark.executor.instances": str(executors),
        "spark.cores.max": str(executors * processes),
    }  # fmt: skip


def _settings(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for key, equals, _ in pairs:
        if not equals or not key.strip():
            raise ConfigError(f"--conf {key!r} has no value; write spark.executor.memory=2g")
    return {key.strip(): value for key, _, value in pairs}


def _progress(session: Session) -> Callable[[Sequence[Counts]], None]:
    told_at = time.monotonic()

    def tell(counts: Sequence[Counts]) -> None:
        nonlocal told_at
        if time.monotonic() - told_at < TOLD_EVERY_S:
            return
        told_at = time.monotonic()
        ready, locked = sum(one.ready for one in counts), sum(one.locked for one in counts)
        session.note(f"{ready:,} ready, {locked:,} locked")

    return tell


def _show(session: Session, result: Drained) -> int:
    rows = [_row(one) for one in result.executors]
    if rows and not session.as_json:
        session.say_all(rows, _HEADINGS)
    done = sum(one.done for one in result.executors)
    record = {
        "done": done, "retried": sum(one.retried for one in result.executors),
        "dead": sum(one.dead for one in result.executors), "seconds": result.seconds,
        "uncounted": result.uncounted, "executors": rows, "left": [one._asdict() for one in result.left],
        "failed": [one._asdict() for one in result.failed],
    }  # fmt: skip
    session.say(record, f"{done:,} jobs done in {result.seconds:.1f} s{_left_told(result)}")
    for one in result.failed:
        session.note(f"executor {one.executor} failed with exit code {one.code}:\n{one.said}")
    if result.uncounted:
        session.note(f"{result.uncounted:,} events were trimmed before they were counted")
    ready = any(one.ready for one in result.left)
    return exits.NO if ready or result.failed else exits.OK


def _row(one: Counted) -> dict[str, Any]:
    return {
        **asdict(one), "workers": len(one.workers), "busy_s": round(one.busy_s, 1),
    }  # fmt: skip


def _left_told(result: Drained) -> str:
    parts = []
    for one in result.left:
        facts = {
            "ready": one.ready, "delayed": one.delayed, "locked by others": one.locked,
        }  # fmt: skip
        told = ", ".join(f"{count:,} {what}" for what, count in facts.items() if count)
        if told:
            parts.append(f"{one.queue}: {told}{' (paused)' if one.paused else ''}")
    over = "" if result.in_time else "; the time was over"
    return over + (f"; left in {'; '.join(parts)}" if parts else "; nothing is left")


def _terminated(number: int, frame: FrameType | None) -> None:
    # As an exception, so that the workers end with us.
    raise SystemExit(128 + number)
