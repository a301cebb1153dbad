"""`keep_logs`: the log records of an attempt are stored, and no others."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jobq.config import CodecSettings
from jobq.errors import ConfigError
from jobq.jobs.attempt_log import MAX_BYTES, AttemptLog, AttemptLogs
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor, RunHooks
from jobq.jobs.registry import Registry, job
from jobq.jobs.signing import Seal, shown_text
from jobq.queue.types import Message

ROOT = logging.getLogger()


class Stored:
    """The stored logs, by mid and attempt; how often."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, str, int], bytes] = {}
        self.kept_s = 0.0
        self.times = 0

    def __call__(self, queue: str, mid: str, attempt: int, text: bytes, keep_s: float) -> None:
        self.logs[queue, mid, attempt] = text
        self.kept_s, self.times = keep_s, self.times + 1

    @property
    def only(self) -> str:
        [text] = self.logs.values()
        return text.decode()


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def ready(
    registry: Registry, message: Callable[..., Message], stored: Stored
) -> Callable[..., tuple[Executor, Call]]:
    """ready(function, *args): a call of it as a job that keeps its logs, and its executor."""

    def make(
        function: Any, *args: Any, seal: Seal | None = None, store: Any = stored, **more: Any
    ) -> tuple[Executor, Call]:
        target = job(name="work", registry=registry, keep_logs="1h", retries=0)(function)
        executor = Executor(registry, seal=seal, hooks=RunHooks(attempt_logs=AttemptLogs(store)))
        sent = message(target, *args, **more)
        if seal is not None:
            content = seal.close_call("low", "mid-1", sent.content)
            sent = Message("mid-1", content, 1, 0, 7, "first.token", "caller.1.0", 0, 0)
        call = executor.resolve("low", sent)
        assert isinstance(call, Call)
        return executor, call

    return make


def test_what_an_attempt_logs_is_kept_with_its_failure_and_nothing_else(ready: Any, stored: Stored):
    def work() -> None:
        logging.getLogger("shop").warning("page %d at https://anna:pw@host/", 3)
        raise ValueError("no use")

    logging.getLogger("shop").warning("before")
    executor, call = ready(work, attempt=2)
    executor.run(call)
    logging.getLogger("shop").warning("after")

    assert list(stored.logs) == [("low", "mid-1", 2)]
    assert stored.kept_s == 3_600
    first, *rest = stored.only.splitlines()
    assert first.endswith("WARNING shop: page 3 at https://***@host/") or "pw" not in first
    assert any("ValueError: no use" in line for line in rest)
    assert "before" not in stored.only and "after" not in stored.only
    assert not [one for one in ROOT.handlers if type(one).__module__ == AttemptLogs.__module__]


def test_a_job_that_declares_nothing_keeps_nothing(
    registry: Registry, message: Callable[..., Message], stored: Stored
):
    target = job(name="work", registry=registry)(lambda: logging.warning("a line"))
    executor = Executor(registry, hooks=RunHooks(attempt_logs=AttemptLogs(stored)))
    call = executor.resolve("low", message(target))
    assert isinstance(call, Call)
    executor.run(call)
    assert stored.times == 0


def test_async_attempts_side_by_side_keep_their_own_logs(
    registry: Registry, message: Callable[..., Message], stored: Stored
):
    async def work(name: str) -> None:
        for step in range(3):
            logging.getLogger("shop").warning("%s at %d", name, step)
            await asyncio.sleep(0)

    target = job(name="work", registry=registry, keep_logs=60)(work)
    executor = Executor(registry, hooks=RunHooks(attempt_logs=AttemptLogs(stored)))

    async def both() -> None:
        calls = [executor.resolve("low", message(target, f"n{n}", attempt=n)) for n in (1, 2)]
        await asyncio.gather(*(executor.arun(call) for call in calls if isinstance(call, Call)))

    asyncio.run(both())
    for n in (1, 2):
        lines = stored.logs["low", "mid-1", n].decode().splitlines()
        assert [line.partition("shop: ")[2] for line in lines] == [f"n{n} at {k}" for k in range(3)]
    assert not [one for one in ROOT.handlers if type(one).__module__ == AttemptLogs.__module__]


def test_only_the_newest_64_kib_are_kept():
    stored: list[bytes] = []
    log = AttemptLog(stored.append)
    for number in range(5_000):
        log.add(b"line %06d of some length\n" % number)
    log.store()
    remark, *lines = stored[-1].splitlines()
    assert remark == b"(%d earlier lines were dropped)" % (5_000 - len(lines))
    assert lines[-1] == b"line 004999 of some length"
    assert MAX_BYTES - 100 < sum(len(line) + 1 for line in lines) <= MAX_BYTES
    log.add(b"x" * 10**6)
    log.store()
    assert stored[-1].partition(b"\n")[2] == b"x" * MAX_BYTES


def test_it_is_stored_with_the_first_line_and_then_once_a_second(monkeypatch: pytest.MonkeyPatch):
    now, stored = [50.0], []
    monkeypatch.setattr("jobq.jobs.attempt_log.time.monotonic", lambda: now[0])
    log = AttemptLog(stored.append)
    for line in (b"1", b"2", b"3"):
        log.add(line)
    assert stored == [b"1"]
    now[0] += 1
    log.add(b"4")
    assert stored == [b"1", b"1234"]
    log.store()
    assert len(stored) == 2, "nothing new"


def test_what_storing_logs_and_its_errors_disturb_nothing():
    def store(text: bytes) -> None:
        log.add(b"from within")
        raise RuntimeError("away")

    log = AttemptLog(store)
    log.add(b"a")
    assert log.text() == b"a"


def test_a_store_that_fails_lets_the_job_end(ready: Any, capsys: pytest.CaptureFixture[str]):
    def away(*what: object) -> None:
        raise RuntimeError("away")

    executor, call = ready(lambda: logging.getLogger("shop").warning("a line"), store=away)
    assert executor.run(call).outcome == "done"
    assert capsys.readouterr().err == ""


def test_threads_have_it_only_with_its_context_and_forked_processes_never(
    ready: Any, stored: Stored
):
    def work() -> None:
        log = logging.getLogger("shop")
        thread = threading.Thread(target=log.warning, args=("from a thread",))
        thread.start()
        thread.join()
        log.warning("from the job")
        if not (pid := os.fork()):
            log.warning("from a process")
            os._exit(0)
        os.waitpid(pid, 0)

    executor, call = ready(work)
    executor.run(call)
    assert "from the job" in stored.only
    assert "from a" not in stored.only


@pytest.mark.parametrize("mode", ["sign", "encrypt"])
def test_the_log_of_a_sealed_call_is_sealed(ready: Any, stored: Stored, mode: Any):
    seal = Seal(CodecSettings(mode=mode, keys=(("k", b"x" * 32),)))
    executor, call = ready(lambda: logging.getLogger("shop").warning("a secret"), seal=seal)
    assert executor.run(call).outcome == "done"
    assert ("a secret" in stored.only) == (mode == "sign")
    assert shown_text(seal, "log", "low", "mid-1", stored.only).endswith("a secret\n")
    assert "not trusted" in shown_text(seal, "log", "low", "other", stored.only)


@pytest.mark.parametrize("redact", [3, [1], [""], ["a\n"], ["x" * 101], ["x"] * 51, {"a"}])
def test_what_is_hidden_are_names(registry: Registry, redact: Any):
    with pytest.raises(ConfigError, match="redact"):
        job(name="work", registry=registry, redact=redact)(lambda: None)


def test_hidden_arguments_are_named_by_position_too(registry: Registry):
    def pay(amount: int, card: str, /, *, pin: str) -> None: ...

    def declared(redact: Any) -> Any:
        return job(name="work", registry=Registry(), redact=redact)(pay).redacted

    assert declared(["card", "pin", "iban"]) == ("card", "pin", "iban", "1")
    assert declared("pin") == ("pin",)
    assert declared(True) == ("*",)
    assert declared(()) == ()
    assert job(name="other", registry=registry)(pay).redacted is None
