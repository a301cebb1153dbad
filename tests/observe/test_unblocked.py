"""A log that nobody reads: lines are dropped and counted, and nobody waits."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest

from jobq.observe import unblocked as module
from jobq.observe.log import JsonFormatter, LogHandler
from jobq.observe.unblocked import Unblocked, unblocked

LINE = "x" * 99 + "\n"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)


@pytest.fixture(params=["pipe", "pipe of another", "socket"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file to read from, and a stream to write to. A pipe of another user can't be opened once more."""
    if request.param == "socket":
        reading, writing = (one.detach() for one in socket.socketpair())
    else:
        reading, writing = os.pipe()
    if request.param == "pipe of another":

        def refused(*_: object) -> int:
            raise PermissionError

        monkeypatch.setattr(os, "open", refused)
    with os.fdopen(reading, "rb", 0) as reader, os.fdopen(writing, "w") as writer:
        yield reader, writer


def all_there(reader: IO[bytes]) -> str:
    os.set_blocking(reader.fileno(), False)
    text = b""
    while part := reader.read(1 << 20):
        text += part
    return text.decode()


def filled(stream: Unblocked) -> int:
    """Write until lines are dropped; how many lines were begun."""
    nlines = 0
    while not stream.ndropped:
        stream.write(LINE)
        nlines += 1
    return nlines - 1


def test_lines_are_dropped_and_counted_when_nobody_reads(ends):
    reader, writer = ends
    stream = unblocked(writer)
    nlines = filled(stream)
    for _ in range(10):
        stream.write(LINE * 3)
    assert stream.ndropped == 31
    taken = all_there(reader)
    stream.write("after\n")
    stream.write("last\n")
    assert taken + all_there(reader) == (
        LINE * nlines
        + "after\n31 log lines were dropped, because the reader of the log was blocked\nlast\n"
    )
    assert stream.ndropped == 0


def test_handler_tells_in_its_own_format_how_many_lines_were_dropped(ends):
    reader, writer = ends
    handler = LogHandler(writer)
    handler.setFormatter(JsonFormatter())
    record = logging.LogRecord("app", logging.INFO, "", 0, "x" * 1000, None, None)
    while not handler.stream.ndropped:
        handler.emit(record)
    all_there(reader)
    handler.emit(record)
    assert '"level": "warning"' in (note := all_there(reader).splitlines()[-1])
    assert '"message": "1 log lines were dropped' in note


def test_writer_of_a_shared_pipe_still_blocks_for_others(ends):
    _, writer = ends
    filled(unblocked(writer))
    assert os.get_blocking(writer.fileno())


def test_file_is_written_as_ever(tmp_path):
    with (tmp_path / "log").open("w") as file:
        assert unblocked(file) is file


def test_reader_that_is_gone_is_an_error(ends):
    reader, writer = ends
    stream = unblocked(writer)
    reader.close()
    with pytest.raises(OSError, match="pipe"):
        stream.write(LINE)


def test_slow_reader_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 60.0)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0) as reader, os.fdopen(writing, "w") as writer:
        stream: Any = unblocked(writer)
        room: Callable[[float], Any] = stream._room.poll
        taken = []

        class Reading:
            """Takes something whenever the writer waits."""

            def poll(self, ms: float) -> Any:
                taken.append(reader.read(4096))
                return room(ms)

        stream._room = Reading()
        for _ in range(2_000):
            stream.write(LINE)
        assert b"".join(taken).decode() + all_there(reader) == LINE * 2_000
        assert stream.ndropped == 0
