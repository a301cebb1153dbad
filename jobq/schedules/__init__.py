"""Schedules: jobs that workers enqueue at times given by a cron expression or an interval."""
