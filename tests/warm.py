"""Fork the Python processes that tests start from a warm process, instead of starting Python each time.

`install` replaces `subprocess.Popen` with `WarmPopen`, so tests and the code under test call `subprocess` as usual.
Commands of the forms `python -m jobq …`, `jobq …`, `python -c …` and `python script.py` then fork a process that has
already imported redis-py, click and the engine, for a tenth to a third of the CPU. The forked process has its own
environment, working folder, standard files, session and `__main__`. Its signals, exit code and output are those of
any other process. Only objects that are alive at its end aren't freed: a file that was never closed isn't flushed.

`WarmPopen` starts Python as usual whenever the difference could matter: for another interpreter or other options, if
variables of the linker, the locale or PYTHON* differ from those of the test run (except PYTHONPATH and
PYTHONUNBUFFERED), for `preexec_fn` and similar arguments, and in tests marked `real_process`. Mark tests that check
imports, start-up or memory.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from jobq.worker.signals import die_with

ROOT = Path(__file__).resolve().parents[1]
QUICK_START = str(ROOT / "tests" / "quick_start")
#: Modules that a worker and the common commands import. Importing them doesn't register anything.
IMPORTED = (
    "jobq", "jobq.cli.app", "jobq.cli.messages", "jobq.cli.queues", "jobq.cli.worker", "jobq.client.aio",
    "jobq.client.connection", "jobq.embedded.server", "jobq.flows.store", "jobq.jobs.executor",
    "jobq.limits.in_worker", "jobq.metrics.serving", "jobq.observe.log", "jobq.observe.otel", "jobq.observe.sentry",
    "jobq.observe.unblocked", "jobq.protocols.ruby.intake", "jobq.queue.admin", "jobq.queue.partition_ticks",
    "jobq.queue.queue", "jobq.schedules.scheduler", "jobq.worker.child", "jobq.worker.run",
    "multiprocessing.synchronize", "pythonjsonlogger.json",
)  # fmt: skip
#: Prefixes of variables that the linker or Python reads at startup.
EARLY = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_")
FOLLOWED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
MAX_BYTES = 1 << 17


class Warm:
    """Client of the warm process, which starts with the first request."""

    def __init__(self) -> None:
        #: False while a test needs real processes.
        self.enabled = True
        #: CPU seconds of the forked processes that have ended.
        self.spent = 0.0
        self._socket: socket.socket | None = None

    def start(self, request: dict[str, Any], files: list[int]) -> tuple[int, int]:
        """Fork a process with these standard files; return its id and the pipe that reports its end."""
        message = json.dumps(request).encode("utf-8", "surrogateescape")
        while True:
            requests = self._socket or self._begin()
            reading, writing = os.pipe()
            with suppress(BrokenPipeError):
                socket.send_fds(requests, [message], [writing, *files])
            os.close(writing)
            if pid := _line(reading):
                return int(pid), reading
            # Somebody has killed the warm process.
            os.close(reading)
            self.close()

    def _begin(self) -> socket.socket:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno())], cwd=ROOT,
                env={**os.environ, "PYTHONPATH": QUICK_START}, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return self._socket

    def close(self) -> None:
        """End the warm process."""
        if self._socket is not None:
            self._socket.close()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self._process.wait()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            # It includes the forked processes, which are counted already.
            self.spent -= after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            self._socket = None


warm = Warm()
_Popen = subprocess.Popen


class WarmPopen(_Popen):  # type: ignore[type-arg]
    """A `Popen` that forks the warm process if nobody can tell the difference."""

    #: The pipe that reports the end of a forked process.
    _end: int | None = None

    def _execute_child(  # type: ignore[override, no-untyped-def]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
        start_new_session, process_group,
    ) -> None:  # fmt: skip
        others = (executable, preexec_fn, gid, gids, uid, None if umask < 0 else umask)
        plain = close_fds and not pass_fds and not shell and process_group < 0
        given = os.environ if env is None else env
        words = program(args) if plain and not any(one is not None for one in others) else None
        folder = os.path.abspath(os.fspath(cwd or "."))
        if words is None or not warm.enabled or not alike(given) or not os.path.isdir(folder):
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
                start_new_session, process_group,
            )  # fmt: skip
            return
        request = {
            "words": words, "env": {os.fsdecode(k): os.fsdecode(v) for k, v in given.items()},
            "folder": folder, "session": start_new_session,
        }  # fmt: skip
        files = [
            usual if file == -1 else file
            for usual, file in enumerate((p2cread, c2pwrite, errwrite))
        ]
        self.pid, self._end = warm.start(request, files)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _internal_poll(self, *args: Any, **given: Any) -> int | None:
        if self._end is None:
            return super()._internal_poll(*args, **given)
        return self._ended(0)

    def _wait(self, timeout: float | None) -> int | None:
        if self._end is None:
            return super()._wait(timeout)
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _ended(self, timeout: float | None) -> int | None:
        with self._waitpid_lock:
            if self.returncode is None:
                waiting = select.poll()
                waiting.register(self._end, select.POLLIN)
                if waiting.poll(None if timeout is None else max(timeout, 0) * 1000):
                    told = json.loads(_line(self._end) or f"[{-signal.SIGKILL}, 0]")
                    os.close(self._end)
                    self.returncode, spent = told
                    warm.spent += spent
            return self.returncode


def _line(file: int) -> str:
    """Read a line from a pipe; return an empty string if the other side is closed."""
    read = b""
    while not read.endswith(b"\n") and (more := os.read(file, 1)):
        read += more
    return read.decode()


def program(args: Any) -> list[str] | None:
    """Return the arguments for the warm process; None if the command needs a real process."""
    if isinstance(args, (str, bytes, os.PathLike)):
        return None
    first, *words = map(os.fsdecode, args)
    if first == str(Path(sys.executable).parent / "jobq"):
        return [first, *words]
    match words if first == sys.executable else []:
        case ["-P", "-m", module, *_] | ["-m", module, *_]:
            return words if module.partition(".")[0] in ("jobq", "tests", "examples") else None
        case ["-c", _, *_]:
            return words
        case [script, *_] if script.endswith(".py"):
            return words
    return None


def alike(env: Mapping[Any, Any]) -> bool:
    """Return whether Python would start the same way with these variables."""
    path = os.fsdecode(env.get("PYTHONPATH", "")).split(os.pathsep)
    customized = [place for place in path if place and os.path.exists(f"{place}/sitecustomize.py")]
    return set(customized) <= {QUICK_START} and _early(env) == AT_FIRST


def _early(env: Mapping[Any, Any]) -> dict[str, str]:
    named = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
    return {k: v for k, v in named.items() if k.startswith(EARLY) and k not in FOLLOWED}


AT_FIRST = _early(os.environ)


def install() -> None:
    """Let `subprocess` fork the warm process."""
    subprocess.Popen = WarmPopen  # type: ignore[misc]


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request until the client closes; return the request in the forked process."""
    ends: dict[int, int] = {}
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 1024)
            _reap(ends)
        if requests not in ready:
            continue
        message, files, _, _ = socket.recv_fds(requests, MAX_BYTES, 4)
        if not message:
            return None
        parent, pid = os.getpid(), os.fork()
        if not pid:
            die_with(parent)
            return _become(json.loads(message.decode("utf-8", "surrogateescape")), files[1:])
        ends[pid] = files[0]
        os.write(files[0], f"{pid}\n".encode())
        for file in files[1:]:
            os.close(file)


def _reap(ends: dict[int, int]) -> None:
    """Report the exit codes and CPU of ended processes."""
    while ends:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        end = ends.pop(pid)
        with suppress(BrokenPipeError):
            os.write(end, f"[{code}, {usage.ru_utime + usage.ru_stime}]\n".encode())
        os.close(end)


def _become(request: dict[str, Any], files: list[int]) -> dict[str, Any]:
    """Set up the environment, files and streams of a new process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request["session"]:
        os.setsid()
    # First move them above the standard numbers, which they may have.
    kept = [fcntl.fcntl(file, fcntl.F_DUPFD, 10) for file in files]
    for number, file in enumerate(kept):
        os.dup2(file, number)
    os.closerange(3, 1 << 16)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    raw = 0 if os.environ.get("PYTHONUNBUFFERED") else -1
    for number, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))):
        usual = getattr(sys, f"__{name}__")
        stream = io.TextIOWrapper(
            open(number, mode, buffering=raw if number else -1, closefd=False),  # noqa: SIM115
            usual.encoding, usual.errors, line_buffering=number == 2, write_through=not raw,
        )  # fmt: skip
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return request


def run(words: list[str]) -> None:
    """Run the program as `python` would with these arguments."""
    sys.orig_argv = [sys.executable, *words]
    safe = words[0] == "-P"
    words = words[1:] if safe else words
    sys.modules.pop("tests")
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # The path of the warm process began with ROOT and QUICK_START.
    sys.path[:2] = [os.path.abspath(place) for place in path if place]
    importlib.invalidate_caches()
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(main))
        return
    first = words[1:] if words[0] == "-m" else words
    sys.argv = first
    if words[0] == "-m":
        if not safe:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
    runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    """Import and serve. A forked process returns here, and runs its program."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[1]))
    request = serve(requests)
    requests.detach()
    if request is not None:
        leave(finished(request["words"]))


def finished(words: list[str]) -> int:
    """Run the program to its end; return its exit code."""
    try:
        run(words)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        raise
    return 0


def leave(code: int) -> None:
    """End the process as Python does, but don't free its objects: that would copy all memory shared with the parent."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            try:
                stream.flush()
            except OSError:
                # Python reports it.
                sys.exit(code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
