"""Names on the command line are UTF-8, whatever the locale says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobq.queue.types import Ending

pytestmark = pytest.mark.one_server
ROOT = Path(__file__).parents[2]
POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8"}


def shown(server: Any, *words: str | bytes) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobq", "dead", "show", "--url", server.url, *words]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **POSIX}, capture_output=True, encoding="utf-8", check=False
    )  # fmt: skip


def test_dead_message_of_a_mid_beyond_ascii_is_shown_under_a_posix_locale(
    server: Any, queue: Any
) -> None:
    queue.enqueue(b"v", mid="mü→1")
    [message] = queue.dequeue().messages
    queue.finish([Ending(mid=message.mid, token=message.token, outcome="dead", reason="why")])
    ended = shown(server, "mü→1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "reason: why" in ended.stdout
    refused = shown(server, b"m\xff")
    assert refused.returncode == 2
    assert refused.stderr.startswith("jobq: ") and "isn't UTF-8 text" in refused.stderr
