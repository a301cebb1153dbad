"""Spark's classes as an archive that the JVM maps at start, which halves the time to the first answer.

Made by `jobq spark warmup`, in the user's cache, for one Spark on one Java. JOBQ_SPARK_ARCHIVE=off: not used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from jobq import trust
from jobq.errors import PipelineError
from jobq.pipeline.java import Java
from jobq.pipeline.launcher import cache

#: From this Java on, an archive holds linked classes, too, and needs none of the JDK's own beneath it.
AHEAD_OF_TIME = 25
#: What the JVM has to say of an archive that it passes over would go to stdout.
SILENT = "-Xlog:disable"
SWITCH = "JOBQ_SPARK_ARCHIVE"
_BUILD_S = 600


def place(java: Java) -> Path:
    """Where the archive for this Spark on this Java is, or would be."""
    import pyspark

    built_from = [
        pyspark.__file__, pyspark.__version__, str(java.home), java.version,
        platform.system(), platform.machine(), os.environ.get("SPARK_HOME", ""),
    ]  # fmt: skip
    digest = hashlib.sha256("\n".join(built_from).encode()).hexdigest()[:16]
    return cache() / "spark" / f"{pyspark.__version__}-java{java.major}-{digest}.archive"


def options(java: Java) -> list[str]:
    """Java's options to use the archive; none where there is none.

    One that doesn't fit, or is broken, the JVM passes over by itself, silently.
    """
    found = place(java)
    if os.environ.get(SWITCH) == "off" or not os.access(found, os.R_OK) or " " in str(found):
        return []
    # The JVM runs what is in it.
    if trust.fault(found.stat()) or trust.folder_fault(found.parent, cache()):
        return []
    use = "AOTCache" if java.major >= AHEAD_OF_TIME else "SharedArchiveFile"
    return [f"-XX:{use}={found}", SILENT]


def build(java: Java) -> Path:
    """Make the archive, or make it anew, from what a short rehearsal loads. Takes about half a minute.

    Others may start meanwhile: the file appears whole.
    """
    final = place(java)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        if reason := trust.folder_fault(final.parent, cache()):
            raise PipelineError(
                f"no archive is made: {reason}; set XDG_CACHE_HOME to a folder of yours"
            )
        with tempfile.TemporaryDirectory(dir=final.parent) as folder:
            draft = Path(folder) / "archive"
            _rehearse(java, draft)
            draft.replace(final)
    except OSError as error:
        raise PipelineError(
            f"the archive can't be written to {final.parent}: {error.strerror}; "
            "free some 300 MB there, or set XDG_CACHE_HOME to another folder"
        ) from error
    return final


def _rehearse(java: Java, draft: Path) -> None:
    write = "AOTCacheOutput" if java.major >= AHEAD_OF_TIME else "ArchiveClassesAtExit"
    command = [sys.executable, "-P", "-m", "jobq.pipeline.rehearsal", f"-XX:{write}={draft}"]
    done = subprocess.run(
        command, env={**os.environ, SWITCH: "off"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", timeout=_BUILD_S, check=False,
    )  # fmt: skip
    if done.returncode or not draft.is_file():
        last = " / ".join(done.stderr.strip().splitlines()[-5:])
        raise PipelineError(f"Java {java.version} made no archive: {last or 'it said nothing'}")
