"""Start a Spark session for jobq: by default on this machine, with few log lines, in UTC."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jobq import extras
from jobq.config import processors
from jobq.errors import JobqError, PipelineError
from jobq.pipeline import environment, gateway
from jobq.pipeline.environment import checked_heap, checked_master, requested_heap
from jobq.pipeline.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Java options for short runs: one compiler, no collector threads. Long analytics are slower with them.
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOOPBACK = "127.0.0.1"
QUIET = Path(__file__).with_name("log4j2.properties")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def session(
    name: str = "jobq",
    *,
    master: str | None = None,
    memory: str | None = None,
    fast: bool = False,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session. If this process already has a session, return it and apply the settings that can change.

    Raises PipelineError with the last lines of the JVM's output if the session can't be started.

    Args:
        master: Spark's master; by default JOBQ_SPARK_MASTER, else every core of this machine. Under spark-submit,
            spark-submit's master is used.
        memory: The driver's heap; by default JOBQ_SPARK_MEMORY, else 1g.
        fast: Start faster, but compute more slowly.
        conf: Spark's settings, which override the others.
    """
    SparkSession = _spark_session()
    given = dict(conf or {})
    master = given.get("spark.master") or master or _master()
    if submitted() or SparkSession.getActiveSession() is not None:
        return _built(SparkSession, name, None, SETTINGS | given)
    master = checked_master(master)
    if os.environ.get("SPARK_HOME"):
        environment.check_spark_home(os.environ["SPARK_HOME"])
    java = find_java()
    settings = _settings(master, memory, fast, given)
    with _environment(_variables(java, master)):
        gateway.start_jvm(settings)
        return _built(SparkSession, name, master, settings)


def words_of(error: BaseException) -> str:
    """Return the error on one line: the last line of a Python traceback, or the first line of a JVM error."""
    # An error of Python code in an executor: Spark hands over the whole traceback as a parameter. Only PySpark's errors
    # have the method, and PySpark may not be installed.
    parameters: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    traceback = parameters.get("msg", "").strip()
    if traceback:
        return traceback.splitlines()[-1].strip()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Py4J's text begins with its own call; the JVM's error follows.
    of_jvm = next((line[2:] for line in lines if line.startswith(": ")), "")
    if of_jvm:
        return of_jvm
    text = lines[0] if lines else ""
    return text if isinstance(error, JobqError) else f"{type(error).__name__}: {text}"


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that PySpark raises when a query fails or the JVM has died."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError, ConnectionError


#: Settings of every session; they can be changed while it runs.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def submitted() -> bool:
    """Return whether spark-submit started this process. If so, the JVM is already running."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def cores(master: str) -> int | None:
    """Return the number of cores of a local master, such as 2 for local[2]; None for a cluster."""
    if not master.startswith("local"):
        return None
    number = master.removeprefix("local").strip("[]").split(",")[0]
    return int(number) if number.isdecimal() else processors() if number else 1


def _spark_session() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineError(
            f"the pipeline needs PySpark: {error}; {extras.install('spark')}"
        ) from error
    return SparkSession


def _master() -> str:
    return os.environ.get("JOBQ_SPARK_MASTER") or "local[*]"


def _built(
    kind: type[SparkSession], name: str, master: str | None, settings: Mapping[str, str]
) -> SparkSession:
    builder = kind.builder.appName(name)
    if master:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except failures() as error:
        raise PipelineError(
            f"Spark doesn't start with master={master!r}: {words_of(error)}"
        ) from error


def _settings(master: str, memory: str | None, fast: bool, conf: dict[str, str]) -> dict[str, str]:
    """Return Spark's settings. `conf` overrides jobq's settings; only its Java options are added to jobq's."""
    heap = checked_heap(conf.get("spark.driver.memory") or requested_heap(memory))
    options = [f"-Dlog4j2.configurationFile={QUIET.as_uri()}", *([FAST] if fast else [])]
    options.append(conf.get(JAVA_OPTIONS, ""))
    settings = SETTINGS | {
        "spark.driver.memory": heap,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    here = cores(master)
    if here:
        settings |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.shuffle.partitions": str(max(2, 2 * here)),
        }
    return settings | conf | {JAVA_OPTIONS: " ".join(filter(None, options))}


def _variables(java: Java, master: str) -> dict[str, str]:
    python = os.environ.get("PYSPARK_PYTHON") or sys.executable
    local = cores(master) is not None
    if local and python != sys.executable:
        environment.check_python(python)
    variables = {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": python}
    variables |= {"PYSPARK_DRIVER_PYTHON": sys.executable}
    return variables | ({"SPARK_LOCAL_IP": LOOPBACK} if local else {})


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables while the JVM starts, then restore their previous values."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
