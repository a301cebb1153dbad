"""Spark's classes as an archive that the JVM maps at start, which halves the time to the first answer.

Made by `jobq spark warmup`, in the user's cache, for one build of Spark on one Java.
"""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

from jobq.pipeline.java import Java
from jobq.pipeline.launcher import cache

#: From this Java on, an archive holds linked classes and profiles, too.
AHEAD_OF_TIME = 25


def place(java: Java) -> Path:
    """Where the archive for this Spark on this Java is, or would be."""
    key = "\n".join(
        [_spark(), version("pyspark"), str(java.home), java.version, platform.platform()]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache() / "spark" / f"{version('pyspark')}-java{java.major}-{digest}.archive"


def options(java: Java) -> list[str]:
    """Java's options to use the archive; none where there is none that is whole.

    An archive that doesn't fit is passed over by the JVM itself, silently.
    """
    found = place(java)
    if not found.is_file():
        return []
    use = "AOTCache" if java.major >= AHEAD_OF_TIME else "SharedArchiveFile"
    return [f"-XX:{use}={found}"]


def _spark() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)
