"""The core alone: its files and the packages that it needs, in an environment without all others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import test_layers, tools

ROOT = Path(__file__).resolve().parents[2]
JOBS = """
import sys
from jobq import Retry, current, default_client, default_registry, job
from jobq.config import WorkerSettings
from jobq.limits.in_worker import SlotKeeper
from jobq.schedules.scheduler import Scheduler
from jobq.worker.child import Hooks
from jobq.worker.run import run_worker

@job(queue="low", result_ttl=60, retries=1)
def add(a: int, b: int) -> int:
    if current().attempt == 1:
        raise Retry(after=0)
    return a + b

if __name__ == "__main__":
    receipt = add.enqueue(1, b=2)
    settings = WorkerSettings(queues=(("low", 1),), processes=1, burst=True)
    code = run_worker(settings, default_client(), default_registry, hooks=Hooks(keeper=SlotKeeper(), ticks=Scheduler))
    print(code, receipt.result(timeout=10))
    print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("jobq.")}))
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The Python of an environment with what the core needs, and a folder with the core."""
    if why := tools.missing("package index"):
        tools.not_run(why)
    environment, tree = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("core")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", "--retries", "10"]
    subprocess.run([*pip, *test_layers.CORE_NEEDS], check=True)
    for path in (ROOT / "jobq").iterdir():
        if path.name == "__init__.py" or path.stem in test_layers.CORE:
            copied(path, tree / "jobq" / path.name)
    for name in ("lua", "pyproject.toml"):
        copied(ROOT / name, tree / name)
    yield python, tree
    shutil.rmtree(environment)
    shutil.rmtree(tree)


def copied(path: Path, to: Path) -> None:
    """Copy a file or a folder, without what Python compiled."""
    to.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, to, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(path, to)


def environ(**more: str) -> dict[str, str]:
    """Return the environment of a process that can't import this checkout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "PYTEST"))}
    return {**kept, "PYTHONPATH": "", **more}


@pytest.mark.long
@pytest.mark.one_server
def test_core_runs_a_job_that_is_retried_when_nothing_of_the_rest_is_there(
    core, server, redis, tmp_path
):
    python, tree = core
    (tmp_path / "program.py").write_text(JOBS)
    ended = subprocess.run(
        [str(python), str(tmp_path / "program.py")], cwd=tmp_path, check=False, text=True, capture_output=True,
        env=environ(JOBQ_URL=server.url, PYTHONPATH=str(tree)), timeout=300,
    )  # fmt: skip
    code_and_result, *loaded = ended.stdout.splitlines()
    assert code_and_result == "0 3", ended.stderr
    assert set(loaded[0].split()) <= test_layers.CORE
