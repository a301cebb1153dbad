"""SPARK_HOME: PySpark runs the jars it names, which must be of PySpark's own version."""

from __future__ import annotations

import re
from pathlib import Path

from jobq.errors import ConfigError

_JAR = re.compile(r"spark-core_[\d.]+-(\d+\.\d+)\.")


def check(home: str) -> str:
    """`4.3 at <home>`; ConfigError where there is no Spark or one of another version."""
    import pyspark

    jars = Path(home, "jars").glob("spark-core_*.jar")
    found = next((match[1] for jar in jars if (match := _JAR.match(jar.name))), "")
    here = ".".join(pyspark.__version__.split(".")[:2])
    if found == here:
        return f"Spark {found} at {home}"
    fault = f"has Spark {found}" if found else "has no Spark"
    raise ConfigError(f"SPARK_HOME={home!r} {fault}, PySpark here is {here}; unset SPARK_HOME")
