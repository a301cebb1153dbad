"""Resque and Sidekiq: take in the jobs that Ruby pushed, push jobs that Ruby runs, show up as Ruby shows workers.

Coming in, jobs run at least once under jobq's guarantees: `Intake`, or `jobq worker --sidekiq default`.
Going out they are as safe as the Ruby worker that takes them: `SidekiqQueue`, `ResqueQueue`.
"""

from __future__ import annotations

from jobq.protocols.ruby.key_names import RubyQueueName, checked_queue
from jobq.protocols.ruby.queues import ResqueQueue, SidekiqQueue

__all__ = ["ResqueQueue", "RubyQueueName", "SidekiqQueue", "checked_queue"]
