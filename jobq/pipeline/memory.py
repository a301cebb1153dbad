"""The driver's heap: read as Spark and Java read it, refused where Spark would fail for want of it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from jobq.errors import ConfigError

DEFAULT = "1g"
MIB = 1024**2
#: Spark refuses less than 450 MiB, and a collector keeps a part of the heap to itself.
LEAST = 512 * MIB
_SIZE = re.compile(r"(\d+)([kmgt]?)b?")
_UNITS = {"": MIB, "k": 1024, "m": MIB, "g": 1024 * MIB, "t": 1024**2 * MIB}


def asked(memory: str | None) -> str:
    """What is to be the heap: `memory`, JOBQ_SPARK_MEMORY, else DEFAULT."""
    return memory or os.environ.get("JOBQ_SPARK_MEMORY") or DEFAULT


def heap_bytes(text: str) -> int:
    """Bytes of `1g`, `1536m` or `2048`, which are MiB as in Spark."""
    found = _SIZE.fullmatch(text.strip().lower())
    if not found:
        raise ConfigError(f"memory={text!r} is no size; write 1g or 1536m")
    return int(found[1]) * _UNITS[found[2]]


def checked(text: str) -> str:
    """`text` as Spark writes it, if it is enough."""
    size = heap_bytes(text)
    if size < LEAST:
        raise ConfigError(f"memory={text!r} is too small for Spark; take 512m or more, 1g for ease")
    return f"{size // MIB}m"


def available() -> int | None:
    """Bytes that this machine could give now; None where it doesn't say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("MemAvailable:")), "")
    return int(found.split()[1]) * 1024 if found else None
