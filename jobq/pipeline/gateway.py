"""Start and end Spark's JVM, and relay its output.

Known noise is dropped, and the last lines are kept for error messages. The JVM's stdout goes to stderr, because a
command's stdout is for programs.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

from jobq.errors import JobqError, PipelineError

#: Lines that the JVM writes at every start of Spark, or at the first sketch, whatever the log settings.
NOISE = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"WARNING: package sun.security.action not in java.base",
    b"Warning: Java versions > Java 11 can only operate in restricted mode where no off-heap operations are allowed!",
)
KEPT = 8
_STDERR = 2
_LAST_WORDS_S = 5
_END_S = 30
_starting = Lock()


class JvmOutput:
    """Relays the output that the JVM writes to `writer`, and keeps the last lines."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._kept: deque[bytes] = deque(maxlen=KEPT)
        self._thread = Thread(target=self._listen, name="jobq-spark-stderr", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close this process's copy of the writer. While it is open, the reader can't detect that the JVM has ended."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def last_words(self) -> str:
        """Return the last lines of the JVM's output."""
        self.close()
        self._thread.join(_LAST_WORDS_S)
        return b" / ".join(self._kept).decode(errors="replace") or "it printed nothing"

    def _listen(self) -> None:
        with open(self._reader, "rb") as lines:
            for line in lines:
                if line.strip() in NOISE:
                    continue
                self._kept.append(line.strip())
                try:
                    os.write(_STDERR, line)
                except OSError:  # stderr is closed; the JVM must not stop for that
                    continue


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless it is already running. The JVM's heap and options can't change later."""
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    with _starting:
        if SparkContext._gateway is not None:
            return
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        heard = JvmOutput()
        try:
            made = launch_gateway(conf, {"stdout": heard.writer, "stderr": heard.writer})
        except PySparkRuntimeError as error:
            raise PipelineError(f"Spark's JVM didn't start: {heard.last_words()}") from error
        finally:
            heard.close()
        SparkContext._ensure_initialized(gateway=made, conf=conf)


def forget_jvm() -> None:
    """Kill a JVM that has died or doesn't answer, and forget its session. The next `start_jvm` starts a new JVM."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.context import SQLContext

    with _starting:
        made: Any = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SQLContext._instantiatedContext = None
    process = getattr(made, "proc", None)
    if process is not None:
        process.kill()
        process.wait(_END_S)


def end_jvm(timeout_s: float = _END_S) -> None:
    """End this process's JVM. PySpark itself ends the JVM only when the process ends."""
    from pyspark.core.context import SparkContext

    with _starting:
        made = SparkContext._gateway
        if made is None:
            return
        SparkContext._gateway = SparkContext._jvm = None
    made.shutdown()
    process: Any = made.proc
    process.stdin.close()
    process.wait(timeout_s)


@contextmanager
def told_without_traceback() -> Iterator[None]:
    """In a Python process of Spark, report a JobqError as one sentence, without a traceback.

    Use this as a context manager or as a decorator.
    """
    try:
        yield
    except JobqError:
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
