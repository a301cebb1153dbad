"""Schedules: calls of jobs at times that a cron expression or an interval gives."""
