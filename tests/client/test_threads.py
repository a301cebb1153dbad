"""Threads for blocking calls of event loops."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jobq.client.threads import Threads


def no_more_threads(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_call_is_refused_once_and_never_run_when_no_thread_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, ran = Threads(), list[str]()
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_more_threads)
        with pytest.raises(RuntimeError, match="new thread"):
            threads.submit(lambda: ran.append("first"))
    threads.submit(lambda: ran.append("second")).result(60)
    assert ran == ["second"]


def test_call_waits_for_another_thread_when_no_more_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, go_on = Threads(), threading.Event()
    first: Any = threads.submit(lambda: go_on.wait(60))
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_more_threads)
        second = threads.submit(lambda: "done")
    go_on.set()
    assert first.result(60) and second.result(60) == "done"
