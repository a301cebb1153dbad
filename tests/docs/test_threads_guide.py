"""The threads guide's advice about connections, with its own code: in a worker of one process and five threads."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from jobq.client.connection import Client
from jobq.jobs.codec import encode
from jobq.queue.queue import Queue

from .pages import ROOT, Shell, blocks

THREADS, CALLS = 5, 40
GUIDE = (ROOT / "docs/jobs/threads.md").read_text()
#: Notes each connection that any engine opens.
SQLALCHEMY = """# app/watched.py
import os

from sqlalchemy import event
from sqlalchemy.engine import Engine


@event.listens_for(Engine, "connect")
def connected(connection, record):
    with open("opened", "a") as file:
        print(os.getpid(), file=file)
"""
#: Two databases: `default` closes its connection after each job, `kept` keeps one per thread.
DJANGO = """# app/pages.py
from pathlib import Path

import django
from django.conf import settings

from jobq import job

FILE = {"ENGINE": "django.db.backends.sqlite3", "NAME": Path("pages.db").resolve()}
settings.configure(DATABASES={"default": FILE, "kept": {**FILE, "CONN_MAX_AGE": None}})
django.setup()

from django.db import connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from app import django_connections


@receiver(connection_created)
def created(connection, **_):
    with open("created", "a") as file:
        print(connection.alias, file=file)


@job(queue="pages")
def read(number: int) -> None:
    assert connections["default"].connection is None
    for alias in connections:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT 1")
"""


def guide_file(name: str) -> str:
    """A file of the guide, by the name in its first line."""
    [found] = [one.text for one in blocks(GUIDE) if one.text.startswith(f"# {name}\n")]
    return found


def run_worker(shell: Shell, client: Client, module: str, job: str, calls: list[list[Any]]) -> None:
    """A worker has run these calls of a job, and none failed."""
    queue = Queue(module.partition(".")[2], client)
    queue.enqueue_many([encode(f"{module}.{job}", args) for args in calls])
    options = f"--queues {queue.name} --processes 1 --threads {THREADS} --burst"
    shell.run(f"jobq worker --import {module} --import app.watched {options}")
    counts = queue.admin.counts()
    assert (counts.messages, queue.admin.dead()) == (0, []), shell.output()


def test_one_engine_for_each_process_opens_no_more_connections_than_there_are_threads(
    server, client, tmp_path
):
    code = guide_file("app/users.py")
    assert '"postgresql+psycopg:///app"' in code and "THREADS = 50" in code
    code = code.replace('"postgresql+psycopg:///app"', '"sqlite:///users.db?timeout=100"')
    shell = Shell(tmp_path, server.url)
    shell.write([code.replace("THREADS = 50", f"THREADS = {THREADS}"), SQLALCHEMY])
    with closing(sqlite3.connect(tmp_path / "users.db")) as users, users:
        users.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
        users.executemany("INSERT INTO users VALUES (?, 'old')", [(n,) for n in range(CALLS)])
    run_worker(shell, client, "app.users", "rename", [[n, f"new{n}"] for n in range(CALLS)])
    with closing(sqlite3.connect(tmp_path / "users.db")) as users:
        found = users.execute("SELECT id, name FROM users ORDER BY id").fetchall()
    assert found == [(n, f"new{n}") for n in range(CALLS)]
    pids = (tmp_path / "opened").read_text().split()
    assert 1 <= len(pids) <= THREADS and len(set(pids)) == 1


def test_django_closes_its_connections_after_each_job_and_keeps_those_that_may_be_kept(
    server, client, tmp_path
):
    shell = Shell(tmp_path, server.url)
    shell.write([guide_file("app/django_connections.py"), DJANGO, "# app/watched.py\n"])
    run_worker(shell, client, "app.pages", "read", [[n] for n in range(CALLS)])
    created = (tmp_path / "created").read_text().split()
    assert created.count("default") == CALLS
    assert 1 <= created.count("kept") <= THREADS
