"""A project with tasks on jobq; the tests choose its database and the options of the backend."""

import json
import os

import django

BACKPORT = django.VERSION < (6, 0)
SECRET_KEY = "of the tests"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = [*["django_tasks"] * BACKPORT, "jobq.django", "jobq.django.outbox", "orders"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", "db.sqlite3"),
        "OPTIONS": {"timeout": 100},
        "CONN_MAX_AGE": None,
    }
}
if "POSTGRESQL" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "CONN_MAX_AGE": None,
        **json.loads(os.environ["POSTGRESQL"]),
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {
    "default": {
        "BACKEND": "jobq.django.JobqBackend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": json.loads(os.environ.get("TASKS_OPTIONS", "{}")),
    }
}
