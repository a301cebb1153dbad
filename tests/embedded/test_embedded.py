"""The embedded server: one per project, started, joined, ended and healed by real processes."""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from redis import Redis

from jobq.client.connection import connect
from jobq.client.waiter import BlockingConnection
from jobq.config import ServerSettings
from jobq.embedded import server as embedded
from jobq.embedded.files import check, data_folder, files_of
from jobq.embedded.process import held
from jobq.errors import EmbeddedError
from jobq.queue.doctor import LISTPACK
from jobq.queue.queue import Queue
from tests.waiting import until

DEADLINE_S = 120


def gone(pid):
    """Ended; it may still be listed until process 1 collects it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def redis_of(settings):
    """A client of redis-py at the running server."""
    return Redis(unix_socket_path=embedded.status(settings).socket)


@pytest.fixture
def runtime(monkeypatch):
    """A runtime folder of the test's own."""
    folder = tempfile.mkdtemp(prefix="jobq-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    for name in ("JOBQ_URL", "REDIS_URL", "JOBQ_DATA", "JOBQ_EMBEDDED"):
        monkeypatch.delenv(name, raising=False)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def settings(runtime, tmp_path):
    """Of a server that ends with the test."""
    made = ServerSettings(embedded=True, data_dir=str(tmp_path / ".jobq"), embedded_idle_s=60)
    yield made
    embedded.stop(made)


def test_server_is_started_joined_and_stopped(settings):
    assert not embedded.status(settings).running
    url = embedded.start_or_join(settings)
    first = embedded.status(settings)
    assert (first.running, url) == (True, f"unix://{first.socket}")
    assert embedded.start_or_join(settings) == url
    assert embedded.status(settings).pid == first.pid
    assert embedded.stop(settings)
    assert gone(first.pid)
    assert not embedded.stop(settings)


def test_server_is_one_when_six_processes_start_it_at_once(settings):
    script = (
        "import sys; from jobq.config import ServerSettings; from jobq.embedded import server as embedded;"
        "s = ServerSettings(embedded=True, data_dir=sys.argv[1], embedded_idle_s=60);"
        "print(embedded.start_or_join(s), embedded.status(s).pid)"
    )
    command = [sys.executable, "-c", script, settings.data_dir]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    said = {process.communicate(timeout=DEADLINE_S)[0] for process in started}
    assert [process.returncode for process in started] == [0] * 6
    assert len(said) == 1


def test_data_survive_a_kill_and_the_stale_socket_heals(settings):
    url = embedded.start_or_join(settings)
    client = connect(settings=settings)
    client.command("CONFIG", "SET", "appendfsync", "always")
    Queue("low", client).enqueue(b"v", mid="kept")
    killed = embedded.status(settings).pid
    os.kill(killed, signal.SIGKILL)
    until(lambda: gone(killed))
    assert Path(url.removeprefix("unix://")).exists()

    # The same client: it starts the server anew as it finds it gone.
    assert Queue("low", client).status("kept").word == "queued"
    assert embedded.status(settings).pid != killed
    client.close()


def test_half_a_transaction_in_a_torn_file_is_gone_for_good(settings):
    """Valkey 8.1 drops it once, and lets its beginning stay in the file."""
    embedded.start_or_join(settings)
    queue = Queue("low", connect(settings=settings))
    queue.client.command("CONFIG", "SET", "appendfsync", "always")
    queue.enqueue(b"v")
    os.kill(embedded.status(settings).pid, signal.SIGKILL)
    [file] = Path(settings.data_dir).rglob("*.incr.aof")
    with file.open("ab") as torn:
        torn.write(b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$1\r\n1\r\n*3\r\n$3")

    for _ in range(2):
        embedded.start_or_join(settings)
        queue.client.command("CONFIG", "SET", "appendfsync", "always")
        queue.enqueue_many([b"v", b"v"])
        with redis_of(settings) as redis:
            until(lambda redis=redis: rewritten(redis.info("persistence")))
            assert not redis.exists("half")
        os.kill(embedded.status(settings).pid, signal.SIGKILL)
    embedded.start_or_join(settings)
    assert queue.admin.counts().messages == 5
    queue.client.close()


def rewritten(info):
    return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]


def test_server_listens_on_nothing_but_its_socket(settings, runtime):
    embedded.start_or_join(settings)
    process = psutil.Process(embedded.status(settings).pid)
    assert process.net_connections("inet") == []
    folder = Path(embedded.status(settings).socket).parent
    assert folder.parent == runtime
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (Path(settings.data_dir) / ".gitignore").read_text() == "*\n"


def test_server_searches_no_long_hashes_from_their_beginning(settings):
    embedded.start_or_join(settings)
    setting = redis_of(settings).config_get("hash-max-listpack-entries")
    assert int(setting["hash-max-listpack-entries"]) == LISTPACK


def test_server_is_joined_from_a_process_with_another_runtime_folder(settings, monkeypatch):
    url = embedded.start_or_join(settings)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    assert embedded.start_or_join(settings) == url


def test_server_ends_by_itself_when_nobody_is_connected(settings):
    soon = replace(settings, embedded_idle_s=3)
    embedded.start_or_join(soon)
    pid = embedded.status(soon).pid
    until(lambda: gone(pid))
    assert not embedded.status(soon).running


def test_server_stays_as_long_as_somebody_is_connected(settings):
    soon = replace(settings, embedded_idle_s=3)
    client = connect(settings=soon)
    waiting = BlockingConnection(client, "wake")
    # Longer than the limit, as the server counts: a blocking wait of its own ends after 5 s.
    waiting.send(("BLPOP", "wake", "5"))
    pid = embedded.status(soon).pid
    select.select([waiting.file], [], [])
    assert waiting.reply() is None
    assert not gone(pid)
    waiting.close()
    client.close()
    until(lambda: gone(pid))


def test_server_that_cannot_start_is_quoted(settings):
    data = Path(settings.data_dir)
    data.mkdir(mode=0o700)
    (data / "appendonlydir").mkdir()
    (data / "appendonlydir" / "appendonly.aof.manifest").write_text("no manifest\n")
    with pytest.raises(EmbeddedError, match="AOF"):
        embedded.start_or_join(settings)
    shutil.rmtree(data)


def test_folder_of_somebody_else_is_refused(settings, runtime):
    (runtime / "jobq").mkdir(mode=0o777)
    (runtime / "jobq").chmod(0o777)
    with pytest.raises(EmbeddedError, match="only you can use"):
        embedded.start_or_join(settings)


def test_temporary_file_that_a_server_removes_meanwhile_is_no_fault(settings, monkeypatch):
    files = files_of(Path(settings.data_dir))
    (files.data / "appendonlydir").mkdir(mode=0o700, parents=True)
    files.data.chmod(0o700)
    monkeypatch.setattr(Path, "iterdir", _vanishing(Path.iterdir))
    check(files)


def _vanishing(listed):
    """iterdir, whose files are gone before they are looked at, and whose folders before they are listed."""

    def iterdir(folder):
        if folder.name == "appendonlydir":
            raise FileNotFoundError(folder)
        yield from listed(folder)
        yield folder / "temp-rewriteaof-1.aof"

    return iterdir


def test_data_that_cannot_be_made_are_refused(runtime, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedError, match="JOBQ_DATA"):
        embedded.start_or_join(
            ServerSettings(embedded=True, data_dir=str(tmp_path / "file" / "data"))
        )


def test_data_lie_beside_the_nearest_pyproject(tmp_path):
    inner = tmp_path / "app" / "inner"
    inner.mkdir(parents=True)
    assert data_folder(None, inner) == inner / ".jobq"
    (tmp_path / "app" / "pyproject.toml").touch()
    assert data_folder(None, inner) == tmp_path / "app" / ".jobq"
    assert data_folder(str(tmp_path / "other"), inner) == tmp_path / "other"


def test_socket_is_refused_when_its_path_is_too_long(runtime, tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(EmbeddedError, match="XDG_RUNTIME_DIR to a folder with a shorter path"):
        embedded.start_or_join(ServerSettings(embedded=True, data_dir=str(tmp_path / "data")))


def test_start_is_refused_when_there_is_no_temporary_folder(runtime, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    with pytest.raises(EmbeddedError, match="set XDG_RUNTIME_DIR or TMPDIR"):
        files_of(tmp_path)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_runtime_folder_that_others_can_write_to_holds_no_socket(runtime, tmp_path, mode):
    assert files_of(tmp_path).socket.parent == runtime / "jobq"
    runtime.chmod(mode)
    assert files_of(tmp_path).socket.parent == Path(tempfile.gettempdir(), f"jobq-{os.geteuid()}")


def test_start_is_refused_when_a_server_on_these_data_lost_its_socket(settings, monkeypatch):
    url = embedded.start_or_join(settings)
    found = embedded.status(settings)
    Path(found.socket).rename(found.socket + "-")
    with monkeypatch.context() as hasty:
        hasty.setattr(embedded, "SILENT_S", 0.1)
        said = f"process id {found.pid} uses .* can't be reached"
        with pytest.raises(EmbeddedError, match=said):
            embedded.start_or_join(settings)
    Path(found.socket + "-").rename(found.socket)
    assert embedded.start_or_join(settings) == url
    assert embedded.status(settings).pid == found.pid


def test_copy_gets_its_own_server_when_a_data_folder_is_copied(settings, tmp_path):
    url = embedded.start_or_join(settings)
    with redis_of(settings) as client:
        client.set("k", "both")
    embedded.stop(settings)
    assert embedded.start_or_join(settings) == url
    other = replace(settings, data_dir=str(tmp_path / "copy"))
    shutil.copytree(settings.data_dir, other.data_dir)
    try:
        assert embedded.start_or_join(other) != url
        with redis_of(other) as client:
            assert client.get("k") == b"both"
            client.set("k", "the copy's")
        with redis_of(settings) as client:
            assert client.get("k") == b"both"
    finally:
        embedded.stop(other)


def test_server_is_replaced_when_its_data_folder_was_removed(settings):
    embedded.start_or_join(settings)
    first = embedded.status(settings).pid
    with redis_of(settings) as client:
        client.set("k", "v")
    shutil.rmtree(settings.data_dir)
    assert not embedded.status(settings).running
    embedded.start_or_join(settings)
    assert gone(first)
    with redis_of(settings) as client:
        assert client.get("k") is None


def test_server_ends_when_its_data_folder_is_removed_and_nobody_comes(settings):
    embedded.start_or_join(replace(settings, embedded_idle_s=3))
    pid = embedded.status(settings).pid
    shutil.rmtree(settings.data_dir)
    until(lambda: gone(pid))


def test_idle_server_ends_when_the_lock_of_its_watch_was_removed(settings):
    embedded.start_or_join(replace(settings, embedded_idle_s=3))
    pid = embedded.status(settings).pid
    files_of(Path(settings.data_dir)).watch_lock.unlink()
    until(lambda: gone(pid))


def test_start_heals_when_pid_file_and_noted_socket_are_stale(settings, tmp_path):
    data = Path(settings.data_dir)
    data.mkdir(mode=0o700)
    (data / "server.pid").write_text(f"{os.getpid()}\n")
    (data / "server.lock").touch()
    (data / "socket").write_text(str(tmp_path / "gone.sock"))
    embedded.start_or_join(settings)
    pid = embedded.status(settings).pid
    assert (data / "server.pid").read_text().strip() == str(pid) != str(os.getpid())


def test_server_is_watched_when_it_was_started_as_the_last_one_ended(settings):
    soon = replace(settings, embedded_idle_s=3)
    embedded.start_or_join(soon)
    where = files_of(Path(soon.data_dir))
    until(lambda: not held(where.server_lock))
    embedded.start_or_join(soon)
    pid = embedded.status(soon).pid
    until(lambda: gone(pid))


def test_server_stays_when_clients_come_and_go_between_two_looks(settings):
    soon = replace(settings, embedded_idle_s=3)
    embedded.start_or_join(soon)
    found = embedded.status(soon)
    while (up := embedded.status(soon)).uptime_s < 8:
        assert up.pid == found.pid
        time.sleep(0.02)
    until(lambda: gone(found.pid))


@pytest.mark.real_process
def test_another_watcher_comes_when_the_first_was_killed(settings):
    soon = replace(settings, embedded_idle_s=3)
    embedded.start_or_join(settings)
    watch_lock = files_of(Path(settings.data_dir)).watch_lock
    [watcher] = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "jobq.embedded.watch" in (said := process.info["cmdline"] or [])
        and settings.data_dir in said
    ]
    watcher.kill()
    until(lambda: not held(watch_lock))
    embedded.start_or_join(soon)
    pid = embedded.status(soon).pid
    until(lambda: gone(pid))


def test_start_tells_server_and_data_when_it_starts_and_when_it_joins(settings, caplog):
    caplog.set_level("INFO", logger="jobq.server")
    socket = embedded.start_or_join(settings).removeprefix("unix://")
    embedded.start_or_join(settings)
    assert [record.getMessage() for record in caplog.records] == [
        f"{word} embedded server at {socket}; data in {settings.data_dir}"
        for word in ("started an", "joined the")
    ]
