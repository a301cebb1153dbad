"""Where the modules of peers, which run in other venvs, find server and settings: the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

SOCKET = os.environ.get("BENCH_SOCKET", "")
#: Set where systems reach the server over TCP.
PORT = os.environ.get("BENCH_PORT", "")
URL = f"redis://127.0.0.1:{PORT}" if PORT else f"unix://{SOCKET}"
#: For clients of redis-py.
SERVER: dict[str, Any] = (
    {"host": "127.0.0.1", "port": int(PORT)} if PORT else {"unix_socket_path": SOCKET}
)
ROOT = Path(__file__).resolve().parents[2]
#: Set for the case of a killed process: use the peer's protection against losing jobs.
SAFE = bool(os.environ.get("BENCH_SAFE"))
#: Set where a worker logs as it is installed; otherwise nothing per job.
AS_INSTALLED = bool(os.environ.get("BENCH_LOGS"))


def program(name: str) -> str:
    """A command of the venv that runs this."""
    return str(Path(sys.executable).with_name(name))


def quiet(*flags: str) -> tuple[str, ...]:
    """Flags that keep a worker from logging each job; none where it works as installed."""
    return () if AS_INSTALLED else flags


def knob(name: str, best: str) -> str:
    """A setting that `python -m bench --sweep` tries other values of."""
    return os.environ.get(f"BENCH_{name}", best)
