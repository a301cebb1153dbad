"""The Python that Spark's workers run: it must be of the driver's minor version."""

from __future__ import annotations

import subprocess
import sys

from jobq.errors import ConfigError

_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"
_START_S = 30


def version_of(python: str) -> str:
    """`3.11`, as that interpreter says of itself; ConfigError if it doesn't start."""
    try:
        return subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, check=True, timeout=_START_S
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"PYSPARK_PYTHON={python!r} doesn't start: {error}; unset it, or name {sys.executable}"
        ) from error


def check(python: str) -> str:
    """`3.11, <python>`; ConfigError for one that Spark would refuse, but only at its first row."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    there = version_of(python)
    if here != there:
        raise ConfigError(
            f"PYSPARK_PYTHON={python!r} is Python {there}, this is {here}; "
            f"unset it, or name {sys.executable}"
        )
    return f"{there}, {python}"
