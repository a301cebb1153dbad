"""`jobq worker --reload`: restart the worker when a source file changes (development only)."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
import traceback
from pathlib import Path

from jobq.worker import exit_codes, logger

EVERY_S = 0.5
#: Folders that are not watched: installed packages, Python's standard library, and jobq.
_LEFT_OUT = (
    *{sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")},
    str(Path(__file__).parents[1]),
)
State = dict[str, tuple[int, int]]


class Sources:
    """Polls the Python files in the folders of the program's own modules for changes."""

    def __init__(self) -> None:
        self._folders = {os.getcwd()}
        self._state: State = {}
        self._look_at = 0.0

    def add_imported(self) -> None:
        """Watch the folders of all imported modules of the program."""
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        self._add([file for file in files if file])

    def add_failed(self, error: BaseException) -> None:
        """Watch the folders of the files in which an import failed."""
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            files.append(error.filename)
        self._add(files)

    def _add(self, files: list[str]) -> None:
        own = [file for file in files if file.endswith(".py") and not file.startswith(_LEFT_OUT)]
        self._folders |= {os.path.dirname(os.path.abspath(file)) for file in own}
        self._state = self._read()

    def changed(self) -> bool:
        """Return whether a file was changed, added or removed, with at most two checks per second."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + EVERY_S
        return self._read() != self._state

    def restart(self, code: int) -> None:
        """Restart the command if the worker exited because a file changed. If the worker failed to start, wait for a
        change first.
        """
        if code in (exit_codes.BOOT, exit_codes.CHILD_BOOT):
            logger.info("waiting for a source file to change")
            while not self.changed():
                time.sleep(EVERY_S / 5)
        elif code != exit_codes.RELOAD:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, sys.orig_argv)

    def _read(self) -> State:
        state: State = {}
        for folder in self._folders:
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.name.endswith(".py"):
                            stat = entry.stat()
                            state[entry.path] = (stat.st_mtime_ns, stat.st_size)
            except OSError:
                continue  # it was removed, perhaps while it was read
        return state
