"""The app for INSTALLED_APPS. It adds `manage.py jobq`, deployment checks and the dashboard's permissions."""

from __future__ import annotations

from django.apps import AppConfig

from jobq.django import checks


class JobqConfig(AppConfig):
    """The configuration of the app. It registers the deployment checks."""

    name = "jobq.django"
    # Permissions are named after this label: jobq.read.
    label = "jobq"
    default_auto_field = "django.db.models.BigAutoField"  # pyright: ignore[reportAssignmentType]
    verbose_name = "jobq"

    def ready(self) -> None:
        """Register the checks that `manage.py check --deploy` runs on the server."""
        checks.register()
