"""The permissions of the dashboard: `jobq.read`, `jobq.operate`, `jobq.admin` and `jobq.arguments`."""

from __future__ import annotations

from django.db import models


class Dashboard(models.Model):
    """A model without a table, because Django creates permissions and entries in the admin's index only for models."""

    class Meta:
        managed = False
        app_label = "jobq"
        default_permissions = ()
        verbose_name = verbose_name_plural = "dashboard"
        permissions = (
            ("read", "May see queues, messages and workers"),
            ("operate", "May make reversible changes: pause, cancel, revive"),
            ("admin", "May make all changes, including irreversible ones"),
            ("arguments", "May see the arguments and results of jobs"),
        )
