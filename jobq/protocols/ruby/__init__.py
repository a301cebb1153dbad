"""Resque and Sidekiq: run jobs that Ruby pushed, push jobs that Ruby runs, and appear in Ruby's dashboards.

Jobs from Ruby run at least once, under jobq's guarantees; see `Intake`, or `jobq worker --sidekiq default`.
Jobs for Ruby are as safe as their Ruby worker; see `SidekiqQueue` and `ResqueQueue`.
"""

from __future__ import annotations

from jobq.protocols.ruby.key_names import RubyQueueName, checked_queue
from jobq.protocols.ruby.queues import ResqueQueue, SidekiqQueue

__all__ = ["ResqueQueue", "RubyQueueName", "SidekiqQueue", "checked_queue"]
