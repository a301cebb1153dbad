"""Watch code while it runs, and call a function before a given line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

#: An unreserved tool id of sys.monitoring. Debuggers, coverage, profilers and optimizers have other ids.
TOOL = 4


class Line(NamedTuple):
    """A line of code."""

    file: str
    number: int


class WatchedCode:
    """The functions and modules whose lines are counted. A module is identified by its file name."""

    def __init__(self, what: Iterable[Callable[..., Any] | ModuleType]) -> None:
        self._files: set[str] = set()
        self._codes: set[CodeType] = set()
        for source in what:
            if isinstance(source, ModuleType):
                self._files.add(source.__file__ or "")
            else:
                self._add(source.__code__)

    def _add(self, code: CodeType) -> None:
        self._codes.add(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add(constant)

    def __contains__(self, code: CodeType) -> bool:
        return code in self._codes or code.co_filename in self._files


class LineWatch:
    """Counts the lines run by a thread, and calls `then` before line number `at`, counted from 1.

    An exception raised by `then` appears to come from that line.
    """

    def __init__(self, code: WatchedCode, at: int = 0, then: Callable[[], object] = bool) -> None:
        self._code, self._at, self._then = code, at, then
        self._thread = 0
        #: The lines so far, in order.
        self.lines: list[Line] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the code that runs in this context, in this thread."""
        self._thread = threading.get_ident()
        with _monitored(self) if sys.version_info >= (3, 12) else _traced(self):
            yield

    def reached(self, code: CodeType, number: int) -> bool:
        """Count the next line if its code and its thread are watched. Return whether the code is watched."""
        if code not in self._code:
            return False
        if threading.get_ident() == self._thread:
            self.lines.append(Line(code.co_filename, number))
            if len(self.lines) == self._at:
                self._then()
        return True

    def covers(self, code: CodeType) -> bool:
        """Return whether lines of this code are counted."""
        return code in self._code


@contextmanager
def _traced(watch: LineWatch) -> Iterator[None]:
    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        return step if watch.covers(frame.f_code) else None

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            watch.reached(frame.f_code, frame.f_lineno)
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _monitored(watch: LineWatch) -> Iterator[None]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]

    def step(code: CodeType, number: int) -> Any:
        return None if watch.reached(code, number) else monitoring.DISABLE

    line = monitoring.events.LINE
    monitoring.use_tool_id(TOOL, "jobq")
    monitoring.register_callback(TOOL, line, step)
    monitoring.restart_events()
    monitoring.set_events(TOOL, line)
    try:
        yield
    finally:
        monitoring.set_events(TOOL, 0)
        monitoring.register_callback(TOOL, line, None)
        monitoring.free_tool_id(TOOL)
