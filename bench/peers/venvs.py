"""A venv for each peer under `.bench/`, made when first asked for: their requirements exclude each other."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from bench.peers import PEERS
from bench.worker import ROOT

FOLDER = ROOT / ".bench"


class Missing(Exception):
    """What a peer needs isn't there; says what."""


def python_of(name: str) -> Path:
    """The Python that has this peer. Raises Missing."""
    requires = PEERS[name].requires
    if not requires:
        return Path(sys.executable)
    folder = FOLDER / name
    python, marker = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(requires)
    if not marker.exists() or marker.read_text(encoding="utf-8") != wanted:
        print(
            f"# installing {', '.join(requires)} into {folder.relative_to(ROOT)}", file=sys.stderr
        )
        venv.create(folder, clear=True, with_pip=True)
        _install(python, requires)
        marker.write_text(wanted, encoding="utf-8")
    return python


def _install(python: Path, requires: tuple[str, ...]) -> None:
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *requires]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise Missing(f"needs {', '.join(requires)} ({why})")
