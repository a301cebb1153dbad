"""Measured times are compared with their promises, by `jobq chaos`, and a miss is reported."""

from __future__ import annotations

import pytest

from jobq.chaos.faults import FAULTS
from jobq.chaos.verdict import Bound, FinalState, Verdict, missed, verdict_of

CLEAN = verdict_of([], FinalState())


def test_every_bound_names_a_figure():
    bounds = [bound for fault in FAULTS.values() for bound in fault.bounds]
    assert bounds
    assert {bound.figure for bound in bounds} <= set(Verdict._fields)


@pytest.mark.parametrize(
    ("fault", "bound"),
    [
        ("child-kill", "recovery p99 <= 1.00"),
        ("worker-kill", "recovery max <= 4.00"),
        ("host-loss", "recovery max <= 4.00"),
        ("poisoned-crowd", "share >= 0.70"),
        ("partition", "overrun <= 0.20"),
    ],
)
def test_what_was_promised_is_bound(fault, bound):
    assert [one.text for one in FAULTS[fault].bounds] == [bound]


def test_value_beyond_its_bound_is_missed_and_told():
    late = CLEAN._replace(recovery_p99=1.5, share=0.5)
    bounds = (Bound("recovery_p99", 1.0), Bound("share", 0.7, least=True))
    assert list(missed(late, bounds)) == [
        "recovery p99 <= 1.00, measured 1.50",
        "share >= 0.70, measured 0.50",
    ]
    assert not list(missed(late._replace(recovery_p99=1.0, share=0.7), bounds))


def test_what_was_not_measured_misses_nothing():
    assert not list(missed(CLEAN, (Bound("recovery_p99", 1.0),)))
