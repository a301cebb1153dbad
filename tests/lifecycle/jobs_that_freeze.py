"""Jobs that stop their own processes, burn the processor, or take their child with them."""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import resource
import signal
import time
from pathlib import Path

from jobq import JobAborted, current, job
from tests.lifecycle.jobs_at_work import gate, note, quick, rest

__all__ = ["quick"]

UNHEARD = (signal.SIGALRM, signal.SIGUSR2)
HERE = {"queue": "low", "retries": 0}


def first_time(ledger: str, name: str) -> bool:
    """Whether nobody asked before."""
    try:
        Path(ledger).with_name(f"{name}.been").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def freeze() -> None:
    """This process and its supervisor, until somebody wakes them."""
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)


@job(name="freezes_after", **HERE)
def freezes_after(ledger: str, name: str) -> None:
    """Has its effect; then its worker is stopped before it can report. Later runs wait for their gate.

    Deaf, so that what comes on waking is the report of its end, and not its abortion.
    """
    if first_time(ledger, name):
        note(ledger, name, "end", fence=current().fence)
        signal.pthread_sigmask(signal.SIG_BLOCK, UNHEARD)
        freeze()
        return
    note(ledger, name, "start", fence=current().fence)
    while not gate(ledger, name).exists():
        time.sleep(0.005)
    note(ledger, name, "end", fence=current().fence)


@job(name="hears", **HERE)
def hears(ledger: str, name: str) -> None:
    """Undoes the deafness of its child."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, UNHEARD)
    note(ledger, name, "end")


@job(name="freezes_amid", **HERE)
def freezes_amid(ledger: str, name: str) -> None:
    """A job whose worker is stopped in the middle of it; the next run ends immediately."""
    note(ledger, name, "start", fence=current().fence)
    if first_time(ledger, name):
        try:
            freeze()
            rest()
        except JobAborted:
            note(ledger, name, "aborted")
            raise
    note(ledger, name, "end", fence=current().fence)


@job(name="cleans_up", **HERE)
def cleans_up(ledger: str, name: str) -> None:
    """Freeze like freezes_amid, but clean up until its gate is there."""
    note(ledger, name, "start", fence=current().fence)
    if first_time(ledger, name):
        try:
            freeze()
            rest()
        except JobAborted:
            while not gate(ledger, name).exists():
                time.sleep(0.005)
            note(ledger, name, "aborted")
            raise
    note(ledger, name, "end", fence=current().fence)


@job(name="stops", hard_timeout=16.0, **HERE)
def stops(ledger: str, name: str) -> None:
    """Stop only this process, permanently."""
    note(ledger, name, "start")
    os.kill(os.getpid(), signal.SIGSTOP)
    rest()  # a thread continues until the signal has reached it
    note(ledger, name, "end")


@job(name="silences", **HERE)
def silences(ledger: str, name: str, server: int) -> None:
    """The server, for as long as it runs for the first time."""
    if not first_time(ledger, name):
        note(ledger, name, "end")
        return
    os.kill(server, signal.SIGSTOP)
    try:
        rest()
    except JobAborted:
        note(ledger, name, "aborted", lease_left=current().lease_left)
        raise


@job(name="stubborn_in_silence", **HERE)
def stubborn_in_silence(ledger: str, name: str, server: int) -> None:
    """Silences the server and holds on, where no exception gets in."""
    note(ledger, name, "start")
    os.kill(server, signal.SIGSTOP)
    spin()


def segv() -> None:
    # Not os.kill: of a child with threads, another thread may get that signal, after this job is done.
    signal.raise_signal(signal.SIGSEGV)


def null() -> None:
    ctypes.string_at(0)


def leave() -> None:
    os._exit(1)


def abort() -> None:
    os.abort()


def hog() -> None:
    """Crash like a C library that doesn't check the result of malloc."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    ctypes.memset(libc.malloc(1 << 30) or 0, 1, 1 << 30)


def spin() -> None:
    """In C, so that no exception ever gets in."""
    collections.deque(itertools.count(), maxlen=0)


KINDS = {one.__name__: one for one in (segv, null, leave, abort, hog, spin)}


@job(name="takes_along", **HERE)
def takes_along(ledger: str, name: str) -> None:
    """Kill the child, in the way of that name."""
    note(ledger, name, "start", attempt=current().attempt)
    KINDS[name]()


@job(name="spins", hard_timeout=2.0, **HERE)
def spins(ledger: str, name: str) -> None:
    """A job whose child has to be killed for it."""
    takes_along.function(ledger, name)


@job(name="exceeds", **HERE)
def exceeds(ledger: str, name: str) -> None:
    """More memory than its child may have, as Python notices it."""
    note(ledger, name, "start")
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
