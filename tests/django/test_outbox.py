"""The outbox in a Django project: its migration, tasks and jobs in transactions, the relay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobq.django.outbox.databases import dsn_of
from jobq.errors import ConfigError
from tests import tools
from tests.outbox.conftest import database_servers as database_servers
from tests.outbox.conftest import new_database

django = tools.library("django")
if django.VERSION < (6, 0):
    tools.library("django_tasks")

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
from storefront.settings import *
from json import loads
DATABASES = {"default": loads(os.environ["DATABASE_SETTINGS"])}
TASKS["default"]["OPTIONS"] = {"outbox": "default"}
"""
#: All in one process, since each start of Django takes a second.
PROGRAM = """
import django, sys
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from jobq import job, outbox
from jobq.django.discovery import import_tasks
from jobq.django.registered import tasks
from jobq.outbox import inbox

def run(*words):
    call_command(*words)
    sys.stdout.flush()

import_tasks()
run("migrate", "--verbosity", "0")
assert outbox.schema(connection.vendor)
run("check", "--fail-level", "ERROR")
product = tasks.find("orders.tasks.product").task

@job(name="book", retries=0)
def book(number):
    with transaction.atomic():
        print("book", number, inbox.once(connection), flush=True)

def begin():
    kept = product.enqueue(1, 3)
    outbox.enqueue(connection, book, 7)
    return kept

try:
    with transaction.atomic():
        begin()
        raise KeyError
except KeyError:
    pass
with transaction.atomic():
    kept = begin()
alone = product.enqueue(3, 4)
try:
    outbox.enqueue(connection, book, 8)
except Exception as error:
    print(type(error).__name__, flush=True)
connection.close()
run("jobq", "outbox", "relay", "--once", "--log-level", "error")
run("jobq", "worker", "--burst", "--processes", "1", "--log-level", "error", "--queues", "default,mails")
kept.refresh()
alone.refresh()
print(kept.status, kept.return_value, alone.return_value, flush=True)
run("migrate", "jobq_outbox", "zero", "--verbosity", "0")
with connection.cursor() as cursor:
    print([name for name in connection.introspection.table_names(cursor) if name.startswith("jobq")])
"""


@pytest.mark.one_server
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_tasks_and_jobs_of_a_transaction_are_relayed(
    kind, server, client, tmp_path, short_folder, database_servers
):
    made = new_database(kind, tmp_path, short_folder, database_servers)
    folder = Path(__file__).parent / "project"
    (tmp_path / "with_outbox.py").write_text(SETTINGS)
    found: dict[str, Any] = {
        "ENGINE": f"django.db.backends.{'sqlite3' if kind == 'sqlite' else kind}",
        "NAME": made.dsn.partition("///")[2] if made.server is None else made.dsn.partition("@/")[2].partition("?")[0],
        **({} if made.server is None else {"USER": "postgres", "HOST": str(made.server.folder)}),
    }  # fmt: skip
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={
            **kept, "JOBQ_URL": server.url, "PYTHONPATH": f"{ROOT}:{folder}:{tmp_path}",
            "DJANGO_SETTINGS_MODULE": "with_outbox", "DATABASE_SETTINGS": json.dumps(found),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("System check")]
    assert lines == [
        "ConfigError", "3 sent, 0 rejected, 0 left", "book 7 True", "SUCCESSFUL 3 12", "[]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "dsn"),
    [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": "/srv/a b.db"}, "sqlite:////srv/a%20b.db"),
        (
            {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "u", "PASSWORD": "p/@", "HOST": "db",
             "PORT": 5433, "OPTIONS": {"sslmode": "require", "pool": True}},
            "postgresql://u:p%2F%40@db:5433/shop?sslmode=require",
        ),
        (
            {"ENGINE": "django.contrib.gis.db.backends.postgis", "NAME": "shop", "HOST": "/run/postgresql"},
            "postgresql:///shop?host=%2Frun%2Fpostgresql",
        ),
        (
            {"ENGINE": "django.db.backends.mysql", "NAME": "shop", "USER": "u", "HOST": "::1"},
            "mysql://u@[::1]/shop",
        ),
        ({"ENGINE": "django.db.backends.mysql", "NAME": "s", "HOST": "/run/m"}, "mysql:///s?unix_socket=%2Frun%2Fm"),
    ],
)  # fmt: skip
def test_relay_finds_the_database_of_the_settings(settings, dsn):
    assert dsn_of(settings) == dsn


def test_engine_that_the_outbox_does_not_know_is_refused():
    with pytest.raises(ConfigError, match="oracle"):
        dsn_of({"ENGINE": "django.db.backends.oracle", "NAME": "x"})
