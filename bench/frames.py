"""`python -m bench.frames`: calls inside jobq for one job, as an indented trace.

Counted are calls of jobq's own Python functions: `frames` in all, `depth` of the deepest, and how many `modules`
they are in. Comprehensions don't count: from Python 3.12 they aren't calls. A private server answers. One job before
the measured one opens the connection and fills caches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import jobq
from bench.server import private_server
from bench.work import noop
from jobq.jobs.executor import Executor

PACKAGE = str(Path(jobq.__file__).parent)
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>"}


class Trace(NamedTuple):
    """Calls in order, each with its depth from 1 and the function's code."""

    calls: list[tuple[int, CodeType]]

    @property
    def frames(self) -> int:
        return len(self.calls)

    @property
    def depth(self) -> int:
        return max(depth for depth, _ in self.calls)

    @property
    def modules(self) -> set[str]:
        return {_module(code) for _, code in self.calls}

    def lines(self) -> Iterator[str]:
        """The trace for people."""
        for depth, code in self.calls:
            yield f"{'  ' * depth}{code.co_qualname}  ({_module(code)}:{code.co_firstlineno})"


def traced(act: Callable[[], Any]) -> Trace:
    """Return the calls of jobq's functions while `act` runs in this thread."""
    calls: list[tuple[int, CodeType]] = []
    inside: list[FrameType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name in COMPREHENSIONS:
            return
        if event == "call":
            inside.append(frame)
            calls.append((len(inside), code))
        elif event == "return" and inside and inside[-1] is frame:
            inside.pop()

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return Trace(calls)


@contextmanager
def one_job() -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """Yield two functions: the first enqueues a job, the second dequeues, runs and finishes it."""
    with private_server() as client:
        jobq.set_default_client(client)
        queue = jobq.Queue("bench", client)
        executor = Executor(jobq.default_registry, worker="bench")

        def enqueue() -> None:
            noop.enqueue()

        def run() -> None:
            [message] = queue.dequeue().messages
            call = executor.resolve("bench", message)
            assert not isinstance(call, jobq.Ending)
            queue.finish([executor.run(call)])

        try:
            enqueue()
            run()
            yield enqueue, run
        finally:
            jobq.set_default_client(None)


def main() -> None:
    """Print both traces."""
    with one_job() as steps:
        for title, act in zip(("Job.enqueue", "dequeue, run and finish"), steps, strict=True):
            trace = traced(act)
            print(
                f"{title}: {trace.frames} frames, {trace.depth} deep, {len(trace.modules)} modules"
            )
            print("\n".join(trace.lines()))


def _module(code: CodeType) -> str:
    return code.co_filename.removeprefix(PACKAGE + "/")


if __name__ == "__main__":
    main()
