"""Java's classes of Spark in an archive, which each JVM of the tests maps instead of loading and checking them again.

`make test` makes it once for each venv, beside its Python. A JVM without the archive starts as ever, only slower.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from jobq.pipeline.sessions import FAST, session

#: A JVM ignores an unusable archive silently, as executors with another class path do.
USED = "-XX:SharedArchiveFile={} -Xshare:auto -Xlog:disable"
END_S = 900


def archive() -> Path:
    """Where the archive for this venv, Spark and Java is."""
    spark = find_spec("pyspark")
    java = Path(os.environ.get("JAVA_HOME") or "/", "bin", "java")
    found = [spark.origin if spark else None, java if java.exists() else shutil.which("java")]
    parts = [(os.path.realpath(one), os.stat(one).st_mtime_ns) for one in found if one]
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return Path(sys.prefix) / f"spark-{name}.jsa"


def java_options() -> str:
    """Options that make a short-lived JVM quick: little is compiled, and classes come from the archive."""
    return f"{FAST} {USED.format(archive())}"


def make() -> None:
    """Run a little of what tests run, and have the JVM keep the classes that this took."""
    from jobq.pipeline import gateway

    made = archive()
    if made.exists():
        return
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        part = Path(folder) / made.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"{FAST} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
        os.environ["SPARK_LAUNCHER_OPTS"] = FAST
        spark = session("archive", master="local[2]", fast=True)
        rows = spark.range(100).selectExpr("id", "id % 7 AS kind", "timestamp_seconds(id) AS at")
        rows.write.partitionBy("kind").parquet(f"{folder}/rows")
        spark.read.parquet(f"{folder}/rows").createOrReplaceTempView("rows")
        spark.sql(
            "SELECT kind, date_trunc('HOUR', at) AS hour, count(*), max(id), collect_set(at), "
            "lag(kind) OVER (PARTITION BY kind ORDER BY date_trunc('HOUR', at)) "
            "FROM rows JOIN (SELECT DISTINCT id FROM rows) USING (id) GROUP BY 1, 2 ORDER BY 1"
        ).toArrow()
        spark.stop()
        gateway.end_jvm(END_S)
        part.replace(made)


if __name__ == "__main__":
    make()
