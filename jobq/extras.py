"""How to install missing optional packages."""

from __future__ import annotations

import platform
import re
import shlex
import sys


def install(extra: str) -> str:
    """Return the command that installs an extra's packages: `pip install 'cryptography>=50' (the extra crypto)`.

    The command doesn't name jobq, because a package index may have another project of that name.
    """
    names = _requirements(extra)
    if not names:
        return f"install the packages of the extra {extra!r} in jobq's pyproject.toml"
    return f"pip install {' '.join(map(shlex.quote, names))} (the extra {extra})"


def brings(extra: str, module: str) -> bool:
    """Return whether the extra contains a package with this module's name, ignoring hyphens and case."""
    names = (re.split(r"[^\w-]", name)[0] for name in _requirements(extra))
    return module.lower() in {name.replace("-", "_").lower() for name in names}


def _requirements(extra: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("jobq") or []
    except PackageNotFoundError:
        lines = []
    parts = (line.partition(";") for line in lines)
    return [name.strip() for name, _, marker in parts if _belongs(marker, extra)]


def _belongs(marker: str, extra: str) -> bool:
    elsewhere = "platform_machine" in marker and f"'{platform.machine()}'" not in marker
    before = re.search(r"python_version < ['\"]3\.(\d+)", marker)
    elsewhere = elsewhere or (before is not None and sys.version_info >= (3, int(before[1])))
    return f"extra == '{extra}'" in marker and not elsewhere
