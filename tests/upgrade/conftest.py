"""A server that holds what a release left behind, and the commands of this one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobq.client.connection import Client
from tests.conftest import Server, answering, binary, connected, kinds_for, start

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: What this checkout itself leaves, beside the folders of releases.
NOW = "now"


class Left(NamedTuple):
    """A client of a server that loaded a release's dump, that release's folder, and what must become of both."""

    client: Client
    folder: Path
    wanted: dict[str, Any]

    def lake(self, folder: Path) -> str:
        """The release's lake, below `folder`."""
        with tarfile.open(self.folder / "lake.tar.xz") as tar:
            # Debian 12 has Python 3.11.2, which knows no filters. The archive is this checkout's own.
            known = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(folder, **known)
        return str(folder / "lake")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "left" in metafunc.fixturenames:
        releases = [NOW, *sorted(path.parent.name for path in HERE.glob("*/left.json"))]
        given = [(release, kind) for release in releases for kind in kinds_for(metafunc)]
        metafunc.parametrize("left", given, ids="-".join, indirect=True)


@pytest.fixture(scope="session")
def leave(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """leave(program): the folder of what this checkout leaves with that server, made once."""
    made: dict[str, Path] = {}

    def folder(program: str) -> Path:
        if program not in made:
            made[program] = tmp_path_factory.mktemp("left")
            words = [sys.executable, "-m", "tests.upgrade.leave", str(made[program]), program]
            subprocess.run(words, cwd=ROOT, check=True)
        return made[program]

    return folder


@pytest.fixture
def left(
    request: pytest.FixtureRequest, short_folder: Path, leave: Callable[[str], Path]
) -> Iterator[Left]:
    """What one release left, on a server of one kind."""
    release, kind = request.param
    program = binary(kind)
    assert program is not None
    source = leave(program) if release == NOW else HERE / release
    folder = short_folder / f"left-{kind}"
    folder.mkdir()
    shutil.copy(source / "dump.rdb", folder)
    process = start(program, folder, "--port", "0", "--unixsocket", str(folder / "s"))
    try:
        answering(process, folder, unix_socket_path=str(folder / "s"))
        server = Server(kind, f"unix://{folder / 's'}", str(folder / "s"), process)
        with connected(server) as client:
            yield Left(client, source, json.loads((source / "left.json").read_text()))
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The file that jobs append to."""
    path = tmp_path / "ledger"
    path.touch()
    return path


@pytest.fixture
def jobq(ledger: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """jobq("worker", "--burst"): a command, in a process group of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "SENTRY"))}
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, **env: str) -> subprocess.Popen[bytes]:
        log = tmp_path / f"command{len(started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobq", *words], cwd=ROOT, stdout=file, stderr=file,
                env={**kept, "PYTHONPATH": str(ROOT), "JOBQ_TEST_LEDGER": str(ledger), **env},
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
