"""A folder for each peer under `.bench/`, made when first asked for: their requirements exclude each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

from bench.peers import NAMES, PEERS
from bench.server import ROOT

FOLDER = ROOT / ".bench"


class Missing(Exception):
    """A peer's dependency is missing; the message names it."""


def inside_of(name: str) -> list[str]:
    """The command that acts inside a peer, made ready. Raises Missing."""
    if PEERS[name].registry == "npm":
        return [*_node_of(name), f"bench/peers/{name}.js"]
    if PEERS[name].registry == "Debian":
        return [*_ruby_of(name), f"bench/peers/{name}.rb"]
    return [str(_python_of(name)), "-m", "bench.peers.inside", name]


@cache
def named(name: str) -> str:
    """A peer as the tables name it, with its version."""
    requires = PEERS[name].requires
    if PEERS[name].registry == "Debian":
        return f"{name} {_debian_version(requires[0])}"
    return NAMES.get(name) or f"{name} {re.split('==|@', requires[0])[-1]}"


def _debian_version(package: str) -> str:
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", package],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return re.split(r"[+-]", asked.stdout)[0]


def _ruby_of(name: str) -> list[str]:
    ruby = shutil.which("ruby")
    libraries = (f"-r{package.removeprefix('ruby-')}" for package in PEERS[name].requires)
    probe = [ruby or "ruby", *libraries, "-e", ""]
    if (
        not ruby
        or not shutil.which("sidekiq")
        or subprocess.run(probe, capture_output=True, check=False).returncode
    ):
        raise Missing(f"needs {' '.join(PEERS[name].requires)}; apt-get install them")
    return [ruby]


def _node_of(name: str) -> list[str]:
    node = shutil.which("node")
    if not node or not shutil.which("npm"):
        raise Missing("needs node and npm")
    node_modules(FOLDER / name, PEERS[name].requires)
    return [node]


def node_modules(folder: Path, requires: tuple[str, ...]) -> Path:
    """Node's packages in a folder, installed when they aren't there yet."""
    marker, wanted = folder / "installed", "\n".join(requires)
    if not marker.exists() or marker.read_text(encoding="utf-8") != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        _run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)],
            requires,
        )
        marker.write_text(wanted, encoding="utf-8")
    return folder / "node_modules"


def _python_of(name: str) -> Path:
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
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _run(pip, requires)
        marker.write_text(wanted, encoding="utf-8")
    return python


def _run(command: list[str], requires: tuple[str, ...]) -> None:
    ran = subprocess.run([*command, *requires], capture_output=True, text=True, check=False)
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1]
        raise Missing(f"needs {', '.join(requires)} ({why})")
