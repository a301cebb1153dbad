"""Every fault of the network in its short form, by way of the proxy."""

from __future__ import annotations

import pytest

from jobq.chaos.faults import FAULTS

from .conftest import JOBS, broken

NUMBERED = [
    pytest.param(number, name, id=name)
    for number, name in enumerate(FAULTS)
    if "proxy" in FAULTS[name].needs
]


@pytest.mark.parametrize(("own", "fault"), NUMBERED, indirect=["own"])
def test_every_promise_is_kept_under(played, own, fault):
    verdict = played(fault)
    assert broken(verdict) == {}
    assert verdict.attempts >= JOBS
    assert verdict.duplicates <= verdict.hit, verdict
    assert verdict.faults
