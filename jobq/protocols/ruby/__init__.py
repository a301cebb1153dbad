"""Resque and Sidekiq: take in the jobs that Ruby pushed, push jobs that Ruby runs, show up as Ruby shows workers.

Coming in, jobs run at least once under jobq's guarantees: `Intake`, or `jobq worker --sidekiq default`.
Going out they are as safe as the Ruby worker that takes them: `SidekiqQueue`, `ResqueQueue`.
"""

from __future__ import annotations

from jobq.protocols.ruby.outgoing import ResqueQueue, SidekiqQueue
from jobq.protocols.ruby.places import Place, parse_place

__all__ = ["Place", "ResqueQueue", "SidekiqQueue", "parse_place"]
