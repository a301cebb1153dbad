"""Names of flows and steps, and the mids of members: `~import:2026-11-22.rows.7`."""

from __future__ import annotations

import re
from typing import NamedTuple

from jobq.errors import ConfigError

#: In characters.
LONGEST_FLOW, LONGEST_STEP = 64, 32
#: What the mids of members begin with, and no other mid.
MEMBER_SIGN = "~"
#: Members of a step at most.
MOST_MEMBERS = 10_000_000
#: Digits of a member's number.
LONGEST_NUMBER = 7
_NAME = re.compile(r"[A-Za-z0-9_@+-]+")
_FLOW = re.compile(r"[A-Za-z0-9_@+-]+:[A-Za-z0-9_:@+-]+")
_STEP = re.compile(r"[A-Za-z0-9_-]+")
_MEMBER = re.compile(rf"~({_FLOW.pattern})\.({_STEP.pattern})\.(0|[1-9][0-9]{{0,7}})")


class Member(NamedTuple):
    """A message of a step; number: from 0 within its step."""

    flow: str
    step: str
    number: int


def flow_id(name: str, given: str) -> str:
    """Return `name:given`, which names a flow in keys and mids. Raises ConfigError for what can't stand there."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"flow name {name!r} can't be used; take letters, digits and any of _@+-")
    return checked_flow(f"{name}:{given}")


def checked_flow(flow: str) -> str:
    """Return `flow`, a `name:id`; raise ConfigError for one that can't be."""
    if len(flow) > LONGEST_FLOW or not _FLOW.fullmatch(flow):
        raise ConfigError(
            f"flow {flow!r} can't be used; take name:id of up to {LONGEST_FLOW} letters, digits and any of _:@+-"
        )
    return flow


def checked_step(name: str) -> str:
    """Return `name`; raise ConfigError for one that can't name a step."""
    if len(name) > LONGEST_STEP or not _STEP.fullmatch(name):
        raise ConfigError(
            f"step name {name!r} can't be used; take up to {LONGEST_STEP} letters, digits and any of _-"
        )
    return name


def member_mid(flow: str, step: str, number: int = 0) -> str:
    """The mid of one message of a step."""
    return f"~{flow}.{step}.{number}"


def member_of(mid: str) -> Member | None:
    """The member that a mid names; None for a mid that names none."""
    found = _MEMBER.fullmatch(mid)
    if not found:
        return None
    flow, step, number = found.groups()
    if len(flow) > LONGEST_FLOW or len(step) > LONGEST_STEP or int(number) >= MOST_MEMBERS:
        return None
    return Member(flow, step, int(number))
