"""The app that INSTALLED_APPS names: `manage.py jobq`, the checks of a deployment, the dashboard's permissions."""

from __future__ import annotations

from django.apps import AppConfig

from jobq.django import checks


class JobqConfig(AppConfig):
    """Registers the checks."""

    name = "jobq.django"
    # Permissions are named after it: jobq.read.
    label = "jobq"
    default_auto_field = "django.db.models.BigAutoField"  # pyright: ignore[reportAssignmentType]
    verbose_name = "jobq"

    def ready(self) -> None:
        """Have `manage.py check --deploy` ask the server."""
        checks.register()
