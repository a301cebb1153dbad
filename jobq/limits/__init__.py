"""Limits for jobs, web processes and scripts.

`RateLimit` limits starts per time span, and `ConcurrencyLimit` limits the slots in use.
"""

from jobq.limits.concurrency_limit import ConcurrencyLimit, SlotLease
from jobq.limits.rate_limit import Grant, RateLimit

__all__ = ["ConcurrencyLimit", "Grant", "RateLimit", "SlotLease"]
