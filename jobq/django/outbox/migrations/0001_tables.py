"""Creates the tables, and on PostgreSQL the trigger that wakes relays."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from jobq.outbox import schema
from jobq.outbox.schema import drop_schema


def create(apps: Any, editor: Any) -> None:
    """Create missing tables."""
    for statement in schema(editor.connection.vendor):
        editor.execute(statement)


def drop(apps: Any, editor: Any) -> None:
    """Remove the tables with all rows."""
    for statement in drop_schema(editor.connection.vendor):
        editor.execute(statement)


class Migration(migrations.Migration):
    """Create the tables."""

    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [migrations.RunPython(create, drop)]
