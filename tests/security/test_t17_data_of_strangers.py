"""T17: the embedded server works on data of yours alone, and writes to nothing that somebody else put there."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.embedded import server as embedded
from jobq.embedded.files import is_own_socket
from jobq.errors import EmbeddedError
from jobq.queue.queue import Queue
from tests.conftest import answering, binary, start
from tests.security.strangers import STRANGER, given_away, needs_root, ran


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of the test's own, and no server that a variable names."""
    folder = tempfile.mkdtemp(prefix="jobq-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    for name in ("JOBQ_URL", "REDIS_URL", "JOBQ_DATA", "JOBQ_PYPROJECT", "JOBQ_EMBEDDED"):
        monkeypatch.delenv(name, raising=False)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def data(runtime: Path, tmp_path: Path) -> Path:
    """Where the data would be; nothing is there yet."""
    return tmp_path / "app" / ".jobq"


@pytest.fixture
def settings(data: Path) -> Iterator[ServerSettings]:
    """Return the files of a server that ends with the test."""
    made = ServerSettings(embedded=True, data_dir=str(data), embedded_idle_s=60)
    data.parent.mkdir()
    yield made
    if data.is_dir() and not data.is_symlink():
        given_away(data, os.geteuid()).chmod(0o700)
        if not any(path.is_symlink() for path in data.rglob("*")):
            embedded.stop(made)


def assert_refused(settings: ServerSettings, words: str) -> None:
    """Read the folder in every way."""
    for call in (embedded.start_or_join, embedded.status, embedded.stop):
        with pytest.raises(EmbeddedError, match=words) as refused:
            call(settings)
        assert "JOBQ_URL" in str(refused.value)


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_folder_of_a_stranger_is_not_joined(
    settings: ServerSettings, data: Path, mode: int
) -> None:
    data.mkdir()
    (data / "lock").touch()
    given_away(data).chmod(mode)
    assert_refused(settings, f"{data} belongs to uid {STRANGER}, not to you")
    assert [path.name for path in data.iterdir()] == ["lock"]


@needs_root
def test_command_says_whose_the_folder_is(settings: ServerSettings, data: Path) -> None:
    data.mkdir()
    given_away(data)
    (data.parent / "pyproject.toml").touch()
    ended = ran(
        "-m", "jobq", "enqueue", "a.b", "--queue", "low", cwd=data.parent, JOBQ_EMBEDDED="1"
    )
    assert ended.returncode == 3
    assert f"{data} belongs to uid {STRANGER}" in ended.stderr


@needs_root
@pytest.mark.parametrize("name", ["lock", "appendonlydir", "server.log"])
def test_file_of_a_stranger_in_a_folder_of_yours_is_refused(
    settings: ServerSettings, data: Path, name: str
) -> None:
    data.mkdir(mode=0o700)
    (data / name).touch()
    given_away(data / name)
    assert_refused_at_start(settings, f"{name} belongs to uid {STRANGER}")


def assert_refused_at_start(settings: ServerSettings, words: str) -> None:
    """And `.gitignore` was not even written."""
    with pytest.raises(EmbeddedError, match=words):
        embedded.start_or_join(settings)


@pytest.mark.parametrize(
    "name",
    ["lock", "server.lock", "watch.lock", "server.log", "server.pid", "socket", ".gitignore",
     "appendonlydir", "appendonlydir/appendonly.aof.manifest", "temp-rewriteaof-1.aof"],
)  # fmt: skip
def test_link_among_the_data_is_refused_and_what_it_leads_to_is_left_alone(
    settings: ServerSettings, data: Path, tmp_path: Path, name: str
) -> None:
    data.mkdir(mode=0o700)
    (data / name).parent.mkdir(exist_ok=True)
    ours = tmp_path / "ours"
    ours.write_text("kept")
    (data / name).symlink_to(ours)
    assert_refused_at_start(settings, f"{name} is not a plain file")
    # And a link without a target.
    ours.unlink()
    assert_refused_at_start(settings, f"{name} is not a plain file")
    assert not ours.exists()


def test_folder_that_is_a_link_is_refused(
    settings: ServerSettings, data: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    data.symlink_to(private)
    assert_refused(settings, "is a symbolic link")
    assert not list(private.iterdir())


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777, 0o722])
def test_folder_that_others_can_write_to_is_refused(
    settings: ServerSettings, data: Path, mode: int
) -> None:
    data.mkdir()
    data.chmod(mode)
    assert_refused(settings, "can be written by others")


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_folder_with_files_is_refused_when_others_can_read_it(
    settings: ServerSettings, data: Path, mode: int
) -> None:
    # As a checkout has it: then its messages come from the author of the commit.
    (data / "appendonlydir").mkdir(parents=True)
    data.chmod(mode)
    assert_refused(settings, f"others can read it; .* chmod 700 {data}")


def test_empty_folder_that_others_can_read_becomes_yours_alone_and_so_do_all_files(
    settings: ServerSettings, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data.mkdir(mode=0o755)
    data.chmod(0o755)
    before = os.umask(0)
    try:
        client = connect(settings=settings)
        Queue("low", client).enqueue(b"v")
        client.close()
        embedded.stop(settings)
    finally:
        os.umask(before)
    [said] = [record for record in caplog.records if "was readable" in record.getMessage()]
    assert said.levelname == "WARNING"
    assert str(data) in said.getMessage()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (data, *data.rglob("*"))}
    assert len(modes) > 6
    assert not {path: oct(mode) for path, mode in modes.items() if mode & 0o077}


def test_code_among_the_data_is_not_run(settings: ServerSettings, data: Path) -> None:
    data.mkdir(mode=0o700)
    for name in ("hashlib", "redis", "tempfile"):
        (data / f"{name}.py").write_text(f"open({str(data / 'ran')!r}, 'w')\n")
    embedded.start_or_join(settings)
    embedded.stop(settings)
    assert not (data / "ran").exists()


def test_noted_socket_is_not_spoken_to_when_others_could_listen_there(
    settings: ServerSettings, data: Path, runtime: Path
) -> None:
    data.mkdir(mode=0o700)
    public = runtime / "public"
    public.mkdir(mode=0o700)
    program = binary()
    assert program
    process = start(program, data, "--port", "0", "--unixsocket", f"{public}/s")
    try:
        answering(process, data, unix_socket_path=f"{public}/s")
        (data / "socket").write_text(f"{public}/s")
        assert embedded.status(settings).running
        public.chmod(0o755)
        assert not embedded.status(settings).running
        public.chmod(0o700)
        assert is_own_socket(public / "s")
        if os.geteuid() == 0:
            os.chown(public / "s", STRANGER, STRANGER)
            assert not embedded.status(settings).running
    finally:
        process.kill()
        process.wait()


def test_stop_and_status_say_nothing_when_there_is_no_folder(settings: ServerSettings) -> None:
    assert not embedded.status(settings).running
    assert not embedded.stop(replace(settings, data_dir=settings.data_dir + "-other"))


def test_socket_folder_that_others_can_reach_is_refused(
    settings: ServerSettings, runtime: Path
) -> None:
    (runtime / "jobq").mkdir()
    (runtime / "jobq").chmod(0o755)
    with pytest.raises(EmbeddedError, match="only you can use"):
        embedded.start_or_join(settings)


def test_pipe_among_the_data_holds_nobody_up(settings: ServerSettings, data: Path) -> None:
    data.mkdir(mode=0o700)
    os.mkfifo(data / "lock")
    with pytest.raises(EmbeddedError, match="lock is not a plain file"):
        embedded.start_or_join(settings)
    shutil.rmtree(data)
