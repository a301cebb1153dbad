"""What a worker warns of: when, how often, and with which remedy. The clocks move by hand."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from jobq.config import WorkerSettings
from jobq.queue.types import Ending
from jobq.worker.cautions import Cautions, OnceAMinute
from jobq.worker.queue_line import RefusedLog
from jobq.worker.shared_state import NEVER

SECOND = 1_000_000_000
LEASE_S = 30


@pytest.fixture
def clock():
    """now: the clock of leases; set_by: how far the time of day was set since."""
    return SimpleNamespace(now=1_000 * SECOND, set_by=0)


@pytest.fixture
def cautions(clock, caplog):
    caplog.set_level(logging.INFO)
    settings = WorkerSettings(queues=(("low", 1),), lease_s=LEASE_S)
    return Cautions(settings, lambda: clock.now, lambda: 10**18 + clock.now + clock.set_by)


def warnings(caplog):
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


@pytest.mark.parametrize(("left_s", "warned"), [(10, 0), (9.9, 1), (-5, 1)])
def test_lease_with_less_than_a_third_left_is_warned_of(cautions, clock, caplog, left_s, warned):
    cautions.renewing(clock.now + round(left_s * SECOND))
    assert len(warnings(caplog)) == warned
    if warned:
        assert f"{max(0, left_s):.1f} s before they end" in caplog.text
        assert "--lease" in caplog.text


def test_late_renewals_are_one_warning_a_minute(cautions, clock, caplog):
    for _ in range(13):
        cautions.renewing(clock.now + SECOND)
        cautions.renewed(True)
        clock.now += 5 * SECOND
    assert len(warnings(caplog)) == 2


def test_idle_worker_and_one_whose_renewals_fail_are_not_warned_of_late_ones(
    cautions, clock, caplog
):
    cautions.renewing(NEVER)
    cautions.renewed(False)
    cautions.renewing(clock.now)
    assert warnings(caplog) == []
    cautions.renewed(True)
    cautions.renewing(clock.now)
    assert len(warnings(caplog)) == 1


def test_server_is_slow_at_the_fifth_slow_command_in_a_row(cautions, clock, caplog):
    for took_ms in (51, 51, 51, 51, 50, 51, 51, 51, 51):
        cautions.answered(took_ms * 1_000_000)
    assert warnings(caplog) == []
    cautions.answered(170_000_000)
    cautions.answered(180_000_000)
    [warning] = warnings(caplog)
    assert "170 ms for the last:" in warning
    assert "SLOWLOG" in warning
    clock.now += 60 * SECOND
    cautions.answered(190_000_000)
    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize(
    ("jump_s", "text"), [(1.5, "forward by 1.5 s"), (-7_200, "back by 7200.0 s")]
)
def test_clock_that_was_set_is_warned_of_once(cautions, clock, caplog, jump_s, text):
    clock.set_by = round(jump_s * SECOND)
    for _ in range(3):
        clock.now += 10 * SECOND
        cautions.renewing(NEVER)
    [warning] = warnings(caplog)
    assert text in warning
    assert "NTP" in warning


def test_clock_that_is_adjusted_slowly_is_fine_as_is_a_machine_that_slept(cautions, clock, caplog):
    for _ in range(100):
        clock.now += 3_600 * SECOND
        clock.set_by += SECOND - 1
        cautions.renewing(NEVER)
    assert warnings(caplog) == []


def test_refused_outcomes_are_one_warning_a_minute_with_the_remedy(clock, caplog):
    caplog.set_level(logging.INFO)
    log = RefusedLog(OnceAMinute(lambda: clock.now))
    endings = [Ending(mid=mid, token="t") for mid in "abc"]
    log(endings, ["stale", "ok", "stale"])
    [warning] = warnings(caplog)
    assert warning.startswith("a: outcome 'done' was rejected")
    assert "--lease" in warning
    assert (
        caplog.records[-1].getMessage()
        == "c: outcome 'done' was rejected, because its lock was lost or it was cancelled"
    )
    clock.now += 60 * SECOND
    log(endings[1:2], ["stale"])
    assert len(warnings(caplog)) == 2
