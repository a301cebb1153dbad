"""Names of flows and steps, and the mids of members: `~import:2026-11-22.k3x9q2.rows.7`.

A mid names the flow, the id of its run, the step, and the member's number within the step. The run id is made when the
flow is stored. If the flow is removed and started again with the same id, it gets another run id. So a mid shows
whether an outcome belongs to an earlier run. A retry keeps the run id.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from jobq.errors import ConfigError

#: Maximum lengths in characters.
MAX_FLOW_LENGTH, MAX_STEP_LENGTH, MAX_RUN_ID_LENGTH = 64, 32, 16
#: Prefix of members' mids, and of no other mid.
MEMBER_SIGN = "~"
#: Maximum number of members of a step.
MAX_MEMBERS = 10_000_000
#: Maximum number of digits of a member's number.
MAX_NUMBER_LENGTH = 7
_NAME = re.compile(r"[A-Za-z0-9_.@+-]+")
_FLOW = re.compile(r"[A-Za-z0-9_.@+-]+:[A-Za-z0-9_:@+-]+")
_RUN = re.compile(rf"({_FLOW.pattern})(?:\.([A-Za-z0-9]{{1,{MAX_RUN_ID_LENGTH}}}))?")
_STEP = re.compile(r"[A-Za-z0-9_-]+")
_MEMBER = re.compile(rf"~{_RUN.pattern}\.({_STEP.pattern})\.(0|[1-9][0-9]{{0,7}})")


class Member(NamedTuple):
    """A message of a step.

    Attributes:
        number: Position in its step, counted from 0.
        run_id: Id of the run; '' for the current run.
    """

    flow: str
    step: str
    number: int
    run_id: str = ""

    @property
    def run(self) -> str:
        """The member's flow and run id: `flow.run_id`."""
        return run_of(self.flow, self.run_id)

    @property
    def mid(self) -> str:
        """The message's mid."""
        return member_mid(self.run, self.step, self.number)

    @property
    def address(self) -> str:
        """The member's mid without a run id. The seal of a stored call uses it, because the run doesn't exist yet."""
        return member_mid(self.flow, self.step, self.number)


def new_run_id() -> str:
    """Return a random id for a new run. The chance that two runs share an id is one in two billion."""
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(6))


def run_of(flow: str, run_id: str) -> str:
    """Return `flow.run_id`, for mids and signals; the flow alone if the run id is unknown."""
    return f"{flow}.{run_id}" if run_id else flow


def without_run(place: str) -> str:
    """Remove the run id: `flow.run_id.step` becomes `flow.step`, and '' stays ''."""
    name, _, rest = place.partition(":")
    given, _, rest = rest.partition(".")
    return f"{name}:{given}.{rest.rpartition('.')[2]}" if rest else place


def flow_id(name: str, given: str) -> str:
    """Return `name:given`, which identifies a flow in keys and mids. Raises ConfigError for invalid names."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"flow name {name!r} can't be used; use letters, digits and any of _.@+-")
    return checked_flow(f"{name}:{given}")


def checked_flow(flow: str) -> str:
    """Return `flow`; raise ConfigError if it isn't a valid `name:id`."""
    if len(flow) > MAX_FLOW_LENGTH or not _FLOW.fullmatch(flow):
        raise ConfigError(
            f"flow {flow!r} can't be used; use name:id with up to {MAX_FLOW_LENGTH} letters, digits and any of "
            f"_:@+-; the name may also contain dots"
        )
    return flow


def parts_of_run(run: str) -> tuple[str, str]:
    """Split a result of `run_of` into the flow and the run id; raise ConfigError for anything else."""
    match = _RUN.fullmatch(run)
    return (checked_flow(match[1]), match[2] or "") if match else (checked_flow(run), "")


def checked_step(name: str) -> str:
    """Return `name`; raise ConfigError if it can't name a step."""
    if len(name) > MAX_STEP_LENGTH or not _STEP.fullmatch(name):
        raise ConfigError(
            f"step name {name!r} can't be used; use up to {MAX_STEP_LENGTH} letters, digits and any of _-"
        )
    return name


def member_mid(run: str, step: str, number: int = 0) -> str:
    """Return the mid of one message of a step.

    Args:
        run: Result of `run_of`. The mid of a message always includes a run id.
    """
    return f"~{run}.{step}.{number}"


def member_of(mid: str) -> Member | None:
    """Parse the mid of a member; return None for other mids."""
    match = _MEMBER.fullmatch(mid)
    if not match:
        return None
    flow, run_id, step, number = match.groups()
    if len(flow) > MAX_FLOW_LENGTH or len(step) > MAX_STEP_LENGTH or int(number) >= MAX_MEMBERS:
        return None
    return Member(flow, step, int(number), run_id or "")
