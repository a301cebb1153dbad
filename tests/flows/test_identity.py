"""Names of flows and steps, and the mids of members."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError
from jobq.flows.identity import Member, checked_step, flow_id, member_mid, member_of


def test_a_members_mid_names_its_flow_its_step_and_its_place():
    mid = member_mid(flow_id("import", "2026-11-22"), checked_step("rows"), 7)

    assert mid == "~import:2026-11-22.rows.7"
    assert member_of(mid) == Member("import:2026-11-22", "rows", 7)


@pytest.mark.parametrize(
    "mid",
    ["", "~", "import:1.rows.0", "~import.rows.0", "~import:1.rows", "~import:1.rows.07", "~import:1.rows.-1",
     "~import:1.rows.0\n", "~import:1.rows.10000000", "~import:1.rows.99999999999", f"~a:{'b' * 64}.rows.0",
     f"~a:b.{'s' * 33}.0", "~a:b.c.d.0", "~a:é.rows.0", "~a:b.rows.٣"],
)  # fmt: skip
def test_a_mid_that_no_member_can_have_names_none(mid):
    assert member_of(mid) is None


@pytest.mark.parametrize(
    ("name", "given"), [("", "1"), ("a", ""), ("a:b", "1"), ("a", "1.2"), ("a", "x" * 63)]
)
def test_a_flow_is_refused_when_its_name_can_stand_in_no_mid(name, given):
    with pytest.raises(ConfigError, match=r"can't be used; take"):
        flow_id(name, given)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a:b", "s" * 33])
def test_a_step_is_refused_when_its_name_can_stand_in_no_mid(name):
    with pytest.raises(ConfigError, match=r"step name .* can't be used; take up to 32"):
        checked_step(name)
