"""Locks between processes, of both kinds."""

from __future__ import annotations

import errno
import os
import signal
import threading
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

from jobq.errors import ConfigError
from jobq.worker import shared_lock
from jobq.worker.shared_lock import SemaphoreInMemory, new_lock
from tests.waiting import until


def refuse(*_):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.fixture
def no_semaphores(monkeypatch):
    """/dev/shm is read-only."""
    monkeypatch.setattr(shared_lock, "get_context", lambda _: SimpleNamespace(Lock=refuse))


@pytest.mark.parametrize("make", [get_context("fork").Lock, SemaphoreInMemory])
def test_lock_is_shared_with_a_forked_process_and_kept_when_it_dies(make):
    lock, (told, tells) = make(), os.pipe()
    with lock:
        assert not lock.acquire(block=False)
        child = os.fork()
        if child == 0:
            try:
                lock.acquire()
                os.write(tells, b"1")
            finally:
                os._exit(0)
        assert not lock.acquire(timeout=0.001)
    assert os.read(told, 1) == b"1"
    os.waitpid(child, 0)
    assert not lock.acquire(timeout=0.001)
    lock.release()
    assert lock.acquire(timeout=0.001)
    os.close(told)
    os.close(tells)


def test_semaphore_in_memory_goes_on_waiting_after_a_signal():
    lock, heard, main = SemaphoreInMemory(), [], threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    lock.acquire()

    def disturb():
        signal.pthread_kill(main, signal.SIGUSR1)
        until(lambda: heard)
        lock.release()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        assert lock.acquire()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert heard
    assert not lock.acquire(block=False)


def test_lock_is_made_when_shared_memory_is_read_only(no_semaphores):
    lock = new_lock()
    assert isinstance(lock, SemaphoreInMemory)
    with lock:
        assert not lock.acquire(block=False)


def test_lock_is_an_error_with_the_remedy_when_neither_kind_can_be_made(no_semaphores, monkeypatch):
    monkeypatch.setattr(shared_lock, "_brief", SimpleNamespace(sem_init=lambda *_: -1))
    with pytest.raises(ConfigError, match=r"Read-only file system.*--tmpfs /dev/shm"):
        new_lock()
