"""What a job changed of signals, masks and timers is undone before the next job."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from jobq.worker.signals import Signals


@pytest.fixture
def signals(caplog):
    caplog.set_level("WARNING", "jobq.worker")
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGPROF)}
    yield Signals()
    signal.setitimer(signal.ITIMER_PROF, 0)
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def test_subprocess_reports_its_exit_code_after_a_job_that_ignored_its_children(signals, caplog):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signals.after_job("shop.pay")
    assert (
        subprocess.run([sys.executable, "-S", "-c", "raise SystemExit(3)"], check=False).returncode
        == 3
    )
    assert "shop.pay changed how SIGCHLD is handled" in caplog.text


def test_blocked_signals_are_let_through_after_a_job(signals, caplog):
    came = []
    signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    signals.remember()
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
    signal.raise_signal(signal.SIGUSR1)  # to this thread
    assert came == []
    signals.after_job("shop.pay")
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert came == [1]
    assert "which signals are blocked" in caplog.text


def test_blocked_signal_of_a_profiler_ends_no_process_when_its_job_is_over(signals):
    signal.signal(signal.SIGPROF, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGPROF,))
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    signal.raise_signal(signal.SIGPROF)
    signals.after_job("shop.pay")
    assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_timer_of_the_application_runs_on_when_a_job_stopped_it(signals):
    signal.setitimer(signal.ITIMER_PROF, 3600, 3600)
    signals.remember()
    signal.setitimer(signal.ITIMER_PROF, 0)
    signals.stop_timers("shop.pay")
    assert signal.getitimer(signal.ITIMER_PROF)[1] == 3600


def test_handler_outside_python_is_registered_again_when_a_job_replaced_it(signals):
    registered = []
    signals.handle_outside(signal.SIGWINCH, lambda: registered.append(1))
    signal.signal(signal.SIGWINCH, lambda *_: None)
    signals.after_job("shop.pay")
    assert registered == [1, 1]


def test_thread_lets_signals_through_after_a_job_that_blocked_them(signals):
    masks = []

    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
        signals.after_job_in_thread("shop.pay")
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert masks == [set()]


def test_job_that_changes_nothing_is_not_warned_of(signals, caplog):
    signals.after_job("shop.pay")
    signals.after_job_in_thread("shop.pay")
    signals.after_batch()
    assert caplog.text == ""


@pytest.fixture
def watched(signals):
    c_module = sys.modules["_signal"]
    before = {name: getattr(c_module, name) for name in ("signal", "pthread_sigmask")}
    signals.watch()
    yield signals
    for name, function in before.items():
        setattr(c_module, name, function)


def test_change_of_a_handler_or_of_the_mask_is_noticed(watched):
    assert not watched.touched
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    assert watched.touched
    watched.after_job()
    assert not watched.touched
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
    assert watched.touched


def test_every_job_counts_as_one_that_changed_signals_when_changes_are_not_noticed(
    signals, monkeypatch
):
    monkeypatch.delitem(sys.modules, "_signal")
    signals.watch()
    assert signals.touched
    signals.after_job()
    assert signals.touched
