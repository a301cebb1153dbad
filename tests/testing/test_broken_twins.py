"""Broken twins of the testing kit: one rule is broken at a time, and one of the kit's own tests must fail by it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from jobq.errors import ResultTimeoutError
from jobq.flows.state import FlowView
from jobq.queue.queue import Queue
from jobq.testing import Kit, flows, harness, matching
from jobq.testing.draining import Draining
from jobq.testing.matching import Expected
from jobq.testing.rehearsal import Rehearsal
from jobq.testing.servers import KitClient
from tests.testing import (
    test_assertions,
    test_flows,
    test_kit,
    test_plugin,
    test_rehearsal,
)
from tests.testing.handlers import PAIRS
from tests.testing.test_assertions import send
from tests.testing.test_flows import add, start
from tests.testing.test_kit import ran
from tests.testing.test_plugin import suite

#: What is checked here is the same on each server.
pytestmark = pytest.mark.one_server
#: What the tests below take, beside the kit.
FIXTURES = (add, ran, send, start, suite)

moments, bound, distance = Draining._moments, matching.bound, Expected.distance


class Twin(NamedTuple):
    """What is replaced, by what, and the test that must fail."""

    where: object
    name: str
    broken: object
    noticed_by: Callable[..., object]


def check_kit_begins_empty(registry: Any, server: Any) -> None:
    for _ in range(2):
        with Kit(server.url, registry=registry) as jobq:
            assert jobq.all_enqueued() == []
            Queue("default", jobq.client).enqueue(b"{}")


def without_fault(fault: str) -> Twin:
    pair = next(one for one in PAIRS if fault in one.faults)
    check = partial(
        test_rehearsal.test_each_fault_of_a_faulty_handler_is_found_and_its_sound_twin_passes,
        one=pair._replace(faults=(fault,)), seed=0,
    )  # fmt: skip
    return Twin(Rehearsal, f"_{fault}", lambda self: iter(()), check)


TWINS = {
    "a drain forgets retries": Twin(
        Draining, "_moments", lambda self, name, plan: moments(self, name, plan._replace(retries=False)),
        test_kit.test_retries_run_after_their_backoffs_in_virtual_time,
    ),
    "a drain doesn't wait to be asked for delayed calls": Twin(
        Draining, "_moments", lambda self, name, plan: moments(self, name, plan._replace(delayed=True)),
        test_kit.test_drain_jumps_to_delayed_calls_only_if_asked,
    ),
    "a drain keeps errors of jobs to itself": Twin(
        Draining, "_raise", lambda *given: None,
        test_kit.test_error_of_a_job_is_raised_once_its_outcome_is_stored,
    ),
    "the clock doesn't reach scripts": Twin(
        harness, "connected", lambda settings, clock: KitClient(settings),
        test_kit.test_keys_and_limits_and_expiry_go_by_the_clock,
    ),
    "a call that is furthest away is listed first": Twin(
        Expected, "distance", lambda self, call: -distance(self, call),
        test_assertions.test_error_lists_what_is_enqueued_nearest_first,
    ),
    "a call of another job is as near as one of this job": Twin(
        matching, "OTHER_JOB", 0, test_assertions.test_error_lists_what_is_enqueued_nearest_first
    ),
    "defaults of parameters don't count": Twin(
        matching, "bound", lambda job, args, kwargs, whole: bound(job, args, kwargs, whole=False),
        test_assertions.test_default_of_a_parameter_counts,
    ),
    "any value matches": Twin(
        matching, "same", lambda wanted, given: True,
        test_assertions.test_arguments_match_by_the_names_of_parameters,
    ),
    "a drain moves no flow": Twin(
        Draining, "send_steps", lambda self: False, test_flows.test_drain_runs_flows_over_all_queues
    ),
    "any state and any number of a step is right": Twin(
        flows, "_differences", lambda *given: iter(()),
        test_flows.test_error_shows_steps_what_they_wait_for_and_why_members_failed,
    ),
    "every flow is in the state that is asked for": Twin(
        FlowView, "state", "done", test_flows.test_inline_flow_runs_as_it_starts_and_goes_on_after_a_failure
    ),
    "a step is shown without what it waits for": Twin(
        flows, "step_sentence", lambda *given: "",
        test_flows.test_error_shows_steps_what_they_wait_for_and_why_members_failed,
    ),
    "timers go by the clock of the machine": Twin(
        harness, "connected", lambda settings, clock: KitClient(settings),
        test_flows.test_timers_and_timeouts_follow_the_clock_of_the_test,
    ),
    "inline calls wait": Twin(
        Kit, "_set_inline", lambda self: None, test_kit.test_inline_runs_at_once_and_raises_at_the_enqueue
    ),
    "strict sees nothing left": Twin(
        Kit, "all_enqueued", lambda self: [], test_kit.test_kit_restores_everything_and_reports_what_is_left
    ),
    "a kit begins with what others left": Twin(
        Kit, "_empty", lambda self: None, check_kit_begins_empty
    ),
    **{f"no trial of {fault}": without_fault(fault)
       for fault in ("twice", "killed", "zombie", "late", "reordered")},
}  # fmt: skip


def test_kit_that_is_whole_begins_empty(registry, server):
    check_kit_begins_empty(registry, server)


@pytest.mark.parametrize("broken", TWINS)
def test_broken_twin_is_noticed(request, monkeypatch, server, broken):
    twin = TWINS[broken]
    monkeypatch.setattr(twin.where, twin.name, twin.broken)
    bind = twin.noticed_by.keywords if isinstance(twin.noticed_by, partial) else {}
    names = inspect.signature(twin.noticed_by).parameters.keys() - bind.keys()
    given = {name: request.getfixturevalue(name) for name in sorted(names)}
    # pytest's own failure, of an error that should have been raised, is no AssertionError.
    with pytest.raises((AssertionError, ResultTimeoutError, pytest.fail.Exception)):
        twin.noticed_by(**given)


def test_guard_that_lets_the_server_of_the_shell_through_is_noticed(suite, server, redis, tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import os\n"
        "def pytest_sessionstart():\n"
        "    os.environ['JOBQ_TEST_SERVERS'] += ' ' + os.environ['JOBQ_URL']\n"
    )
    with pytest.raises(AssertionError, match="DID NOT RAISE"):
        test_plugin.test_live_server_stays_byte_for_byte_as_it_was(suite, server, redis)
