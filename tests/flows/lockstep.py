"""Programs that take turns: each continues from one call of a server to the next, waits there, or dies there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from jobq.client.connection import Client


class KilledHere(BaseException):
    """Ends a program between two calls."""


class TurnTaker:
    """One program in a thread of its own, which runs only while it has its turn."""

    here = threading.local()

    def __init__(self, name: str, program: Callable[[], Any]) -> None:
        self.name, self._program = name, program
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._dies = False
        self.is_over = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go(self) -> None:
        """Let it go on to its next call."""
        self._mine.release()
        self._theirs.acquire()

    def kill(self) -> None:
        """Let it die where it waits."""
        self._dies = True
        while not self.is_over:
            self.go()

    def wait(self) -> None:
        """Before a call, in its own thread."""
        self._theirs.release()
        self._mine.acquire()
        if self._dies:
            raise KilledHere

    def _run(self) -> None:
        self._mine.acquire()
        TurnTaker.here.program = self
        try:
            if not self._dies:
                self._program()
        except KilledHere:
            pass
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._theirs.release()


def take_turns(client: Client) -> None:
    """From now on each call of the client by a TurnTaker waits for its turn; other threads call as ever."""
    perform = client.perform

    def turned(*args: Any) -> Any:
        program = getattr(TurnTaker.here, "program", None)
        if program is not None:
            program.wait()
        return perform(*args)

    client.perform = turned  # type: ignore[method-assign]
