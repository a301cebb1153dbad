"""Configure the Django app `jobq.django.outbox`."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The app with the tables jobq_outbox, jobq_outbox_failed and jobq_inbox."""

    name = "jobq.django.outbox"
    label = "jobq_outbox"
    verbose_name = "jobq outbox"
