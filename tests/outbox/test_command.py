"""`jobq outbox` as it is typed."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jobq import outbox
from jobq.jobs.registry import job
from jobq.metrics.names import OUTBOX
from jobq.metrics.serving import Endpoint, fetch
from jobq.queue.queue import Queue
from tests.cli.conftest import bare as bare
from tests.cli.conftest import line as line
from tests.lifecycle.conftest import DEADLINE_S, until

pytestmark = pytest.mark.one_server


def test_tables_are_made_filled_relayed_and_counted(line, bare, server, client, registry):
    note = job(name="note", registry=registry)(print)
    printed = line("outbox", "schema", "--dialect", "sqlite").out
    connection = sqlite3.connect("shop.db")
    connection.executescript(printed)
    connection.executescript(printed)
    with connection:
        outbox.enqueue_many(connection, note, [(1,), (2,), (3,)])
        connection.execute("UPDATE jobq_outbox SET options = '' WHERE id = 2")
    env = {"JOBQ_OUTBOX_DSN": "sqlite:///shop.db", "JOBQ_URL": server.url}
    [before] = line("outbox", "status", "--json", env=env).records
    assert (before["rows"], before["failed"]) == (3, 0)
    relayed = line("outbox", "relay", "--once", "--log-level", "error", env=env)
    assert (relayed.code, relayed.out) == (0, "2 sent, 1 rejected, 0 left\n")
    assert "1 rejected" in line("outbox", "status", env=env).out
    assert Queue("default", client).admin.counts().ready == 2
    with connection:
        connection.execute("UPDATE jobq_outbox_failed SET options = '{}'")
        connection.execute("INSERT INTO jobq_inbox VALUES ('a', 'q', 'm', 1)")
    assert line("outbox", "retry", env=env).out == "1 row put back into the outbox\n"
    assert line("outbox", "relay", "--once", "--json", env=env).records[0]["sent"] == 1
    assert line("outbox", "purge", "--older-than", "1d", env=env).out == "1 row deleted\n"
    connection.executescript(line("outbox", "schema", "--dialect", "sqlite", "--drop").out)
    left = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'jobq%'").fetchall()
    connection.close()
    assert left == []


def test_errors_end_with_a_code_and_a_reason(line, bare, server):
    missing = line("outbox", "relay")
    assert missing.code == 2 and "--dsn" in missing.err
    assert line("outbox", "status", "--dsn", "x").code == 2
    empty = line(
        "outbox", "relay", "--once", "--dsn", "sqlite:///empty.db", env={"JOBQ_URL": server.url}
    )
    assert empty.code == 1 and "no such table: jobq_outbox" in empty.err
    assert "jobq outbox schema" in empty.err


def test_relay_goes_on_until_term(server, client, registry, tmp_path: Path, short_folder: Path):
    note: Any = job(name="note", registry=registry)(print)
    path, queue = tmp_path / "shop.db", Queue("default", client)
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in outbox.schema("sqlite"):
            connection.execute(statement)
        process = subprocess.Popen(
            [
                sys.executable, "-m", "jobq", "outbox", "relay", "--dsn", f"sqlite:///{path}", "--url", server.url,
                "--poll", "20ms", "--health", f"unix:{short_folder}/relay",
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            for number in (1, 2):
                outbox.enqueue(connection, note, number)
                connection.commit()
                until(lambda wanted=number: queue.admin.counts().ready == wanted)
            probes = Endpoint("", 0, f"{short_folder}/relay")
            until(lambda: fetch(probes, "/readyz").status == 200)
            assert fetch(probes, "/healthz").body == b"ok\n"
            # Rows are counted as sent once they are deleted.
            until(lambda: b"jobq_outbox_sent_total 2.0" in fetch(probes, "/metrics").body)
            exported = fetch(probes, "/metrics").body.decode()
            assert set(re.findall(r"^(jobq\w+)", exported, re.MULTILINE)) == set(OUTBOX)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, out) == (0, "2 sent, 0 rejected, 0 left\n"), err
