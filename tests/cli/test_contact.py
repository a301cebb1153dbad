"""First contact of a command with the server: wrong folders and addresses are errors, and a wait is announced."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq.cli import contact
from jobq.cli.modules import require
from jobq.client.connection import Client
from jobq.config import STAYING_PATIENCE_S, ServerSettings

NOBODY = "unix:///nowhere/jobq.sock"
READING = [
    ("queues",), ("workers",), ("running",), ("status", "m"), ("why", "m"), ("queue", "peek"), ("check", "doctor"),
    ("check", "fsck"), ("dead", "list"), ("dead", "show", "m"), ("schedule", "list"), ("flow", "list"),
    ("limit", "list"), ("key", "list", "low"), ("events", "tail"), ("topic", "list"), ("cancel", "m"),
    ("pause", "low"), ("resume", "low"), ("dead", "revive", "m"), ("queue", "purge", "low", "--yes"),
]  # fmt: skip


@pytest.fixture
def stranger() -> Iterator[str]:
    """The URL of a server of another kind, which answers the first request with HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_reading_command_starts_no_server_when_none_has_run_here(
    bare: Path, line: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("JOBQ_EMBEDDED", "1")
    ended = line(*words)
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith(f"jobq: this folder has no server: {bare}/.jobq ")
    assert "JOBQ_URL" in ended.err and not (bare / ".jobq").exists()


def test_misspelt_job_starts_no_server(
    bare: Path, line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBQ_EMBEDDED", "1")
    ended = line("enqueue", "app.jobs.resiez")
    assert ended.code == 5 and "no worker has it" in ended.err
    assert not (bare / ".jobq").exists()
    # Nothing is said about workers of a server that can't be reached.
    monkeypatch.setenv("JOBQ_EMBEDDED", "0")
    forbidden = line("enqueue", "app.jobs.resiez")
    assert forbidden.code == 3 and "JOBQ_EMBEDDED=0 forbids" in forbidden.err


def make_package(folder: Path, name: str) -> None:
    """Make a package with the module `jobs`, and with a module `made` without a file."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(
        "import sys\nsys.modules[__name__ + '.made'] = sys\n"
    )
    (folder / name / "jobs.py").write_text("")


def test_required_module_is_not_imported_when_it_has_a_file(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    make_package(bare, "contact_lazy")
    require(["contact_lazy.jobs"])
    assert "contact_lazy" not in sys.modules
    require(["contact_lazy.made"])  # only its package can tell


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("nowhere.jobs", "no module 'nowhere.jobs' is in"),
        ("app/jobs.py", "write --import app.jobs"),
        ("contact_app.jbos", "no module 'contact_app.jbos' is in"),
        ("contact_app.jobs.send", "write --import contact_app.jobs"),
    ],
)
def test_worker_does_not_start_a_server_when_its_module_is_missing(
    bare: Path, line: Any, monkeypatch: pytest.MonkeyPatch, module: str, error: str
) -> None:
    monkeypatch.setenv("JOBQ_EMBEDDED", "1")
    make_package(bare, "contact_app")
    ended = line("worker", "--import", module)
    assert ended.code == 2 and error in ended.err
    assert not (bare / ".jobq").exists()


@pytest.mark.parametrize("words", [("worker",), ("schedule", "lint")], ids=" ".join)
def test_command_names_the_option_when_a_module_is_given_as_an_argument(
    line: Any, words: tuple[str, ...]
) -> None:
    ended = line(*words, "app.sums")
    assert (ended.code, ended.out) == (2, "")
    assert "argument (app.sums). Name modules with --import MODULE" in ended.err


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (NOBODY, "No such file or directory"),
        ("redis://127.0.0.1:1", "Connection refused"),
        ("redis://nowhere.invalid:6379", "not known"),
    ],
)
def test_command_fails_at_its_first_try_when_nothing_listens(
    line: Any, monkeypatch: pytest.MonkeyPatch, url: str, reason: str
) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    if url.startswith("redis://nowhere"):  # without a network, the resolver only fails temporarily
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(Client, "perform", None)  # a call would wait for the command's patience
    ended = line("queues", "--url", url)
    assert (ended.code, ended.out) == (3, "")
    assert f"no server at {url} (" in ended.err and reason in ended.err
    assert "--url or JOBQ_URL" in ended.err and "JOBQ_PATIENCE" in ended.err


def test_command_names_the_other_kind_of_server_when_it_speaks_http(
    line: Any, stranger: str
) -> None:
    ended = line("queues", "--url", stranger)
    assert ended.code == 3
    assert f"no server at {stranger} (another kind of server answered)" in ended.err


def test_command_waits_and_says_so_when_its_patience_is_set(
    line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "QUIET_S", 0.0)
    ended = line("queues", "--url", NOBODY, env={"JOBQ_PATIENCE": "500ms"})
    first, second = ended.err.splitlines()
    assert ended.code == 3
    assert first == f"jobq: waiting up to 0.5 s for {NOBODY}; Ctrl-C ends the wait"
    assert "within 0.5 s" in second


def test_wait_is_told_once_it_has_lasted_and_anew_after_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, told = [1000.0], []
    monkeypatch.setattr(contact.time, "monotonic", lambda: now[0])
    client = Client(ServerSettings(url=NOBODY, patience_s=STAYING_PATIENCE_S))
    keep_waiting = contact.telling_waits(client, told.append)

    for after_s, lines in [(0, 0), (0.5, 0), (0.6, 1), (3600, 1), (0.5, 1), (0.6, 2)]:
        now[0] += after_s
        assert keep_waiting() is False
        assert len(told) == lines
