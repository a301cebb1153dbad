"""What Spark's own programs have to be told: which Java, which Python, and to stay on this host."""

from __future__ import annotations

import os
import sys

from jobq.pipeline.java import find_java


def variables() -> dict[str, str]:
    """Environment for spark-submit, spark-class and spark-pipelines on this machine.

    What the environment says already is kept, but for a JAVA_HOME that is too old.
    """
    return {
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }
