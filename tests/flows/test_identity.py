"""Names of flows and steps, and the mids of members."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError
from jobq.flows.identity import (
    Member,
    checked_step,
    flow_id,
    member_mid,
    member_of,
    new_run_id,
    parts_of_run,
    run_of,
    without_run,
)


def test_a_members_mid_names_its_flow_its_step_and_its_place():
    run = run_of(flow_id("import", "2026-11-22"), "k3x9q2")
    mid = member_mid(run, checked_step("rows"), 7)

    assert mid == "~import:2026-11-22.k3x9q2.rows.7"
    member = Member("import:2026-11-22", "rows", 7, "k3x9q2")
    assert member_of(mid) == member and member.mid == mid
    assert parts_of_run(run) == ("import:2026-11-22", "k3x9q2")
    assert without_run(f"{run}.rows") == "import:2026-11-22.rows"


def test_name_of_a_flow_may_have_dots():
    run = run_of(flow_id("shop.import", "2026-11-22"), "k3x9q2")
    member = Member("shop.import:2026-11-22", "rows", 7, "k3x9q2")
    assert member.mid == member_mid(run, "rows", 7) == "~shop.import:2026-11-22.k3x9q2.rows.7"
    assert member_of(member.mid) == member
    assert member_of(member.address) == member._replace(run_id="")
    assert parts_of_run(run) == ("shop.import:2026-11-22", "k3x9q2")
    assert without_run(f"{run}.rows") == without_run(member.flow + ".rows")
    assert without_run(f"{run}.rows") == "shop.import:2026-11-22.rows"


def test_an_address_names_a_member_of_whichever_run_there_is():
    member = Member("import:1", "rows", 7, "k3x9q2")

    assert member.address == "~import:1.rows.7"
    assert member_of(member.address) == member._replace(run_id="")
    assert parts_of_run("import:1") == ("import:1", "")
    assert without_run("import:1.rows") == "import:1.rows" and without_run("") == ""


def test_a_run_id_is_new_each_time_and_can_stand_in_a_mid():
    ids = {new_run_id() for _ in range(1_000)}

    assert len(ids) > 990
    assert all(member_of(f"~a:b.{one}.rows.0") for one in ids)


@pytest.mark.parametrize(
    "mid",
    ["", "~", "import:1.rows.0", "~import.rows.0", "~import:1.rows", "~import:1.rows.07", "~import:1.rows.-1",
     "~import:1.rows.0\n", "~import:1.rows.10000000", "~import:1.rows.99999999999", f"~a:{'b' * 64}.rows.0",
     f"~a:b.{'s' * 33}.0", "~a:b.c-1.d.0", f"~a:b.{'r' * 17}.d.0", "~a:b..d.0", "~a:b.r1.c.d.0",
     "~a:é.rows.0", "~a:b.rows.٣"],
)  # fmt: skip
def test_a_mid_that_no_member_can_have_names_none(mid):
    assert member_of(mid) is None


@pytest.mark.parametrize(
    ("name", "given"), [("", "1"), ("a", ""), ("a:b", "1"), ("a", "1.2"), ("a", "x" * 63)]
)
def test_a_flow_is_refused_when_its_name_can_stand_in_no_mid(name, given):
    with pytest.raises(ConfigError, match=r"can't be used; use"):
        flow_id(name, given)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a:b", "s" * 33])
def test_a_step_is_refused_when_its_name_can_stand_in_no_mid(name):
    with pytest.raises(ConfigError, match=r"step name .* can't be used; use up to 32"):
        checked_step(name)
