"""Running examples as their READMEs say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import waiting

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300


@pytest.fixture
def until() -> Callable[..., Any]:
    """until(holds): poll until it does; what it holds. Each look costs a request or a command."""
    return partial(waiting.until, deadline_s=DEADLINE_S, every_s=0.05)


@pytest.fixture
def run(server: Any, client: Any, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """run("-m", "jobq", …, env={…}, cwd=…): Python in a process of its own, on the test's server."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS"))}
    started: list[subprocess.Popen[str]] = []

    def begin(
        *args: str, env: dict[str, str] | None = None, cwd: Path = ROOT
    ) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        process = subprocess.Popen(
            [sys.executable, *args], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**kept, "JOBQ_URL": server.url, "PATH": path, "PYTHONPATH": str(ROOT), **(env or {})},
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=DEADLINE_S)
