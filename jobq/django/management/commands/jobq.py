"""`manage.py jobq worker`, and every other command of jobq, with the project's settings and tasks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from jobq.cli import main
from jobq.cli.modules import loaders
from jobq.django.backend import JobqBackend
from jobq.django.compat import FRAMEWORK, task_backends
from jobq.django.discovery import close_connections, database_connections, import_tasks
from jobq.django.outbox.databases import dsn_of
from jobq.jobs.middleware import everywhere
from jobq.jobs.registry import default_registry

FRAMEWORK_LOG = logging.getLogger(FRAMEWORK)
#: Options of Django that take a value. `manage.py` has already handled them.
_DJANGOS = ("--settings", "--pythonpath")


class ManageJobq(BaseCommand):
    """Runs a command of jobq in a Django project."""

    help = "Run a command of jobq with the tasks of this project: worker, queues, status, dead, check …"
    requires_system_checks: ClassVar[list[str]] = []

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Let jobq parse the command line."""
        if code := run(without_djangos(argv[2:])):
            sys.exit(code)

    def add_arguments(self, parser: CommandParser) -> None:
        """Add arguments for call_command."""
        parser.add_argument("words", nargs="...")

    def handle(self, *args: str, words: Sequence[str] = (), **options: Any) -> None:
        """Run one command line; raise CommandError if its exit code is not 0."""
        if code := run([*args, *words]):
            raise CommandError(f"jobq ended with exit code {code}", returncode=code)


#: Django looks for this name.
Command = ManageJobq


def run(words: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    if load not in loaders:
        loaders.append(load)
    everywhere.add(database_connections)
    if words[:1] == ["outbox"] and not os.environ.get("JOBQ_OUTBOX_DSN"):
        # The password stays out of the command line.
        os.environ["JOBQ_OUTBOX_DSN"] = dsn_of(connections[outbox_database()].settings_dict)
    return main(words)


def outbox_database() -> str:
    """Return the default database of `manage.py jobq outbox`: the first `outbox` option in TASKS, or "default"."""
    backends = [backend for backend in task_backends.all() if isinstance(backend, JobqBackend)]
    return next((backend.outbox for backend in backends if backend.outbox), "default")


def load() -> None:
    """Import the module `tasks` of each app. Then close the connections that these modules opened."""
    import_tasks()
    if FRAMEWORK_LOG.level == logging.NOTSET:
        # The worker logs each start and end itself.
        FRAMEWORK_LOG.setLevel(logging.WARNING)
    for backend in task_backends.all():
        if isinstance(backend, JobqBackend):
            default_registry.queues.update(backend.all_queues)
    close_connections()


def without_djangos(words: Sequence[str]) -> list[str]:
    """Remove Django's options from the words of a command line. Words after `--` stay unchanged."""
    left, kept = list(words), []
    while left and left[0] != "--":
        word = left.pop(0)
        if word in _DJANGOS:
            del left[:1]
        elif not word.startswith(tuple(f"{name}=" for name in _DJANGOS)):
            kept.append(word)
    return kept + left
