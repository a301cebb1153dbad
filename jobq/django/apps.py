"""The app that INSTALLED_APPS names: it brings `manage.py jobq` and the checks of a deployment."""

from __future__ import annotations

from django.apps import AppConfig

from jobq.django import checks


class JobqConfig(AppConfig):
    """Registers the checks."""

    name = "jobq.django"
    label = "jobq_django"
    verbose_name = "jobq"

    def ready(self) -> None:
        """Have `manage.py check --deploy` ask the server."""
        checks.register()
