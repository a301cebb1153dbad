"""A server that holds what the previous release left behind, and both releases' commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq.client.connection import Client
from tests.conftest import Server, answering, binary, connected, kinds_for, start

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LEFT = HERE / "left"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "left_on" in metafunc.fixturenames:
        metafunc.parametrize("left_on", kinds_for(metafunc), indirect=True)


def unpacked(name: str, folder: Path) -> Path:
    """One of the archives that the previous release left, in `folder`."""
    with tarfile.open(LEFT / name) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def left() -> dict[str, Any]:
    """What must become of what the previous release left."""
    found: dict[str, Any] = json.loads((LEFT / "left.json").read_text())
    return found


@pytest.fixture
def left_on(request: pytest.FixtureRequest, short_folder: Path) -> Iterator[Client]:
    """A client of a server, of one kind, that loaded the previous release's dump."""
    folder = short_folder / f"left-{request.param}"
    folder.mkdir()
    shutil.copy(LEFT / "dump.rdb", folder)
    program = binary(request.param)
    assert program is not None
    process = start(program, folder, "--port", "0", "--unixsocket", str(folder / "s"))
    try:
        answering(process, folder, unix_socket_path=str(folder / "s"))
        with connected(
            Server(request.param, f"unix://{folder / 's'}", str(folder / "s"), process)
        ) as client:
            yield client
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous release's package and scripts, and the jobs of these tests."""
    folder = unpacked("release.tar.xz", tmp_path_factory.mktemp("previous"))
    (folder / "tests" / "upgrade").mkdir(parents=True)
    shutil.copy(HERE / "work.py", folder / "tests" / "upgrade")
    return folder


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The file that jobs append to."""
    path = tmp_path / "ledger"
    path.touch()
    return path


@pytest.fixture
def jobq(ledger: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """jobq("worker", "--burst", root=…): a command of the release in that folder, in a process group of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "SENTRY"))}
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, root: Path = ROOT, **env: str) -> subprocess.Popen[bytes]:
        log = tmp_path / f"command{len(started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobq", *words], cwd=root, stdout=file, stderr=file,
                env={**kept, "PYTHONPATH": str(root), "JOBQ_TEST_LEDGER": str(ledger), **env},
                start_new_session=True,
            )  # fmt: skip
        process.log = log  # type: ignore[attr-defined]
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(60)
