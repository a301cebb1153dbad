"""Where the modules of peers, which run in other venvs, find the server: the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SOCKET = os.environ.get("BENCH_SOCKET", "")
URL = f"unix://{SOCKET}"
ROOT = Path(__file__).resolve().parents[2]


def program(name: str) -> str:
    """A command of the venv that runs this."""
    return str(Path(sys.executable).with_name(name))
