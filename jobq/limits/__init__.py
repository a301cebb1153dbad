"""Limits that anything may use: jobs, web processes, scripts. `Limit` counts starts, `Slots` what runs at once."""

from jobq.limits.limit import Grant, Limit
from jobq.limits.slots import SlotLease, Slots

__all__ = ["Grant", "Limit", "SlotLease", "Slots"]
