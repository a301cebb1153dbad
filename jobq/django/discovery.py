"""Django support in workers: imports tasks, and manages database connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.db import close_old_connections, connections, reset_queries
from django.utils.module_loading import autodiscover_modules

from jobq.jobs.context import Context


class DatabaseConnections:
    """A middleware that closes stale connections around every job, as Django does around every request."""

    def run(self, context: Context, next: Callable[[], Any]) -> Any:
        """Close stale database connections of this thread before and after a job."""
        _renew()
        try:
            return next()
        finally:
            close_old_connections()

    async def arun(self, context: Context, next: Callable[[], Awaitable[Any]]) -> Any:
        """Run an async job. Before and after it, close stale connections in the thread that sync_to_async uses."""
        await sync_to_async(_renew)()
        try:
            return await next()
        finally:
            await sync_to_async(close_old_connections)()


#: The instance of this process.
database_connections = DatabaseConnections()


def import_tasks() -> None:
    """Import the module `tasks` of each app that has such a module."""
    autodiscover_modules("tasks")


def close_connections() -> None:
    """Close connections and pools before a fork.

    Child processes must not share sockets, and a fork doesn't copy the threads of a pool.
    """
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
    caches.close_all()


def _renew() -> None:
    reset_queries()  # with DEBUG, Django keeps every statement
    close_old_connections()
