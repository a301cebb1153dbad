"""Check Spark's environment on this machine: the driver's heap, the Python of its workers, and SPARK_HOME."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from jobq.errors import ConfigError
from jobq.pipeline.java import find_java


def spark_variables() -> dict[str, str]:
    """Return the variables that spark-submit, spark-class and spark-pipelines need on this machine.

    Existing values are kept, except a JAVA_HOME that is too old or broken.
    """
    return {
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }


DEFAULT_HEAP = "1g"
MIB = 1024**2
#: Spark refuses less than 450 MiB, and the garbage collector keeps a part of the heap.
MIN_HEAP = 512 * MIB
_SIZE = re.compile(r"(\d+)([kmgt]?)b?")
_UNITS = {"": MIB, "k": 1024, "m": MIB, "g": 1024 * MIB, "t": 1024**2 * MIB}


def requested_heap(memory: str | None) -> str:
    """Return the heap's size: `memory`, else JOBQ_SPARK_MEMORY, else the default."""
    return memory or os.environ.get("JOBQ_SPARK_MEMORY") or DEFAULT_HEAP


def heap_bytes(text: str) -> int:
    """Convert a size such as `1g` or `1536m` to bytes. A number without a unit is in MiB, as in Spark."""
    match = _SIZE.fullmatch(text.strip().lower())
    if not match:
        raise ConfigError(f"memory={text!r} is not a size; write it like 1g or 1536m")
    return int(match[1]) * _UNITS[match[2]]


def checked_heap(text: str) -> str:
    """Return the heap size in MiB for Spark, such as `1024m`. Raises ConfigError if it is too small."""
    size = heap_bytes(text)
    if size < MIN_HEAP:
        raise ConfigError(
            f"memory={text!r} is too small for Spark; it must be at least 512m, preferably 1g"
        )
    return f"{size // MIB}m"


def available_memory() -> int | None:
    """Return the bytes of memory available on this machine; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    available = next((line for line in lines if line.startswith("MemAvailable:")), "")
    return int(available.split()[1]) * 1024 if available else None


_THREADS = r"(\*|[1-9]\d*)"
#: Masters of Spark itself; other clusters have their own URL schemes.
_MASTER = re.compile(
    rf"local(\[{_THREADS}(\s*,\s*[1-9]\d*)?\])?|local-cluster\[\s*\d+\s*(,\s*\d+\s*){{2}}\]|yarn|"
    r"spark://[^\s/]+:\d+|(?!spark:)[a-z][a-z0-9+.-]*://\S+"
)


def checked_master(master: str) -> str:
    """Return the URL of the Spark master. Raises ConfigError if Spark couldn't parse it.

    Spark itself would report this only in a JVM traceback.
    """
    if not _MASTER.fullmatch(master):
        raise ConfigError(
            f"master={master!r} is not a Spark master; write it like local[2], local[*], spark://host:7077, yarn or k8s://…"
        )
    return master


_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"
_START_S = 30


def version_of(python: str) -> str:
    """Return the interpreter's version, such as `3.11`. Raises ConfigError if the interpreter doesn't start."""
    try:
        return subprocess.run(
            [python, "-c", _ASK],
            capture_output=True,
            text=True,
            check=True,
            timeout=_START_S,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"PYSPARK_PYTHON={python!r} doesn't start: {error}; unset it, or set it to {sys.executable}"
        ) from error


def check_python(python: str) -> str:
    """Return the version and path of a Python, such as `3.11, /usr/bin/python3`.

    Raises ConfigError if its version differs from this Python's. Spark would reject it only at the first row.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    there = version_of(python)
    if here != there:
        raise ConfigError(
            f"PYSPARK_PYTHON={python!r} is Python {there}, but this process runs {here}; "
            f"unset it, or set it to {sys.executable}"
        )
    return f"{there}, {python}"


_JAR = re.compile(r"spark-core_[\d.]+-(\d+\.\d+)\.")


def check_spark_home(home: str) -> str:
    """Return the version and path of the Spark installation at `home`.

    Raises ConfigError if there is no Spark, or if its version isn't PySpark's.
    """
    import pyspark

    jars = Path(home, "jars").glob("spark-core_*.jar")
    version = next((match[1] for jar in jars if (match := _JAR.match(jar.name))), "")
    here = ".".join(pyspark.__version__.split(".")[:2])
    if version == here:
        return f"Spark {version} at {home}"
    fault = f"has Spark {version}" if version else "has no Spark"
    raise ConfigError(f"SPARK_HOME={home!r} {fault}, but PySpark here is {here}; unset SPARK_HOME")
