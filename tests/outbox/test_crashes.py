"""D2: each committed call runs, none that was rolled back, and with the inbox each has its effect once.

The relay is killed at every statement; then everything is killed at random while a program writes. `make soak` does the
second with 20,000 transactions and 50 kills, on MariaDB too.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from jobq import outbox
from jobq.jobs.registry import job
from jobq.outbox import inbox
from jobq.outbox.relay import Relay, RelayOptions
from jobq.outbox.rows import DAY_S
from jobq.outbox.tables import OutboxTable
from jobq.queue.queue import Queue
from tests import conftest as servers_of_tests
from tests.lifecycle.conftest import until
from tests.outbox.conftest import KINDS

ROOT = Path(__file__).resolve().parents[2]
SOAK = bool(os.environ.get("JOBQ_OUTBOX"))
TRANSACTIONS, KILLS = (20_000, 50) if SOAK else (150, 6)


def each_server_in_soak(test: Callable[..., None]) -> Callable[..., None]:
    """Only the long form tries each server with each database."""
    return test if SOAK else pytest.mark.one_server(test)


class KilledError(BaseException):
    """The process ends here."""


class Killer:
    """Ends the relay before or after its nth step: a statement, or a call to the server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for owner, name in ((OutboxTable, "_execute"), (Queue, "enqueue_many")):
            monkeypatch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            self._pass()
            made = whole(*args, **options)
            self._pass()
            return made

        return step

    def _pass(self) -> None:
        if self.left == 0:
            self.left = -1
            raise KilledError
        self.left -= self.left > 0


def killed_everywhere(
    database: Any, client: Any, registry: Any, worked: Any, killer: Killer, dedupe_s: float
) -> Counter[int]:
    """How often each committed call ran, when relays were killed at each of their steps."""
    runs: Counter[int] = Counter()
    engine = create_engine(database.url)

    @job(name="effect", registry=registry)
    def effect(number: int) -> None:
        with engine.begin() as connection:
            runs[number] += 1
            if inbox.once(connection):
                connection.exec_driver_sql(f"INSERT INTO effects VALUES ({number})")

    number, at, ended = 0, 0, False
    while not ended:
        for _ in range(3):
            with engine.connect() as connection, connection.begin() as transaction:
                outbox.enqueue(connection, effect.options(queue=f"q{number % 2}"), number)
                if number % 3 == 2:
                    transaction.rollback()
            number += 1
        killer.left = at
        try:
            Relay(database.table(), client, RelayOptions(dedupe_s=dedupe_s, limit=2)).run(once=True)
            ended = True
        except KilledError:
            at += 1
        killer.left = -1
        # The worst: what was sent is done before the row is sent again.
        worked("q0")
        worked("q1")
    assert at > 12
    engine.dispose()
    committed = [one for one in range(number) if one % 3 != 2]
    assert sorted(n for (n,) in database.rows("SELECT number FROM effects")) == committed
    assert sorted(runs) == committed
    return runs


@each_server_in_soak
def test_relay_that_is_killed_at_any_statement_loses_and_doubles_nothing(
    database, client, registry, worked, monkeypatch
):
    runs = killed_everywhere(database, client, registry, worked, Killer(monkeypatch), DAY_S)
    assert set(runs.values()) == {1}


@pytest.mark.one_server
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_without_the_dedupe_calls_run_twice_and_the_inbox_alone_stops_the_effect(
    database, client, registry, worked, monkeypatch
):
    runs = killed_everywhere(database, client, registry, worked, Killer(monkeypatch), 0.0)
    assert max(runs.values()) > 1


class Processes:
    """All that takes part, each to be killed and started again."""

    def __init__(self, database: Any, kind: str, folder: Path) -> None:
        self.database, self.kind, self.folder = database, kind, folder
        self.socket = f"{folder}/r/s"
        (folder / "r").mkdir()
        self.log = (folder / "log").open("ab")
        self.env = {
            **os.environ, "JOBQ_URL": f"unix://{self.socket}", "ORDERING_URL": database.url,
            "JOBQ_OUTBOX_DSN": database.dsn, "JOBQ_EMBEDDED": "0",
        }  # fmt: skip
        self.next = 0
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start one of them."""
        if name == "database":
            self.database.server.start()
            return
        if name == "redis":
            program = servers_of_tests.binary(self.kind)
            assert program is not None
            self.running[name] = servers_of_tests.start(
                program, self.folder / "r", "--port", "0", "--unixsocket", self.socket, "--appendonly", "yes",
                "--appendfsync", "always",
            )  # fmt: skip
            servers_of_tests.answering(
                self.running[name], self.folder / "r", unix_socket_path=self.socket
            )
            return
        words = {
            "worker": ["-m", "jobq", "worker", "--import", "tests.outbox.ordering", "--processes=2", "--lease=2s"],
            "program": ["-m", "tests.outbox.ordering", str(self.next), str(TRANSACTIONS)],
        }.get(name, ["-m", "jobq", "outbox", "relay", "--poll", "20ms"])  # fmt: skip
        out: Any = (self.folder / "written").open("ab") if name == "program" else self.log
        self.running[name] = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=self.env, stdout=out, stderr=self.log, start_new_session=True
        )  # fmt: skip
        if out is not self.log:
            out.close()

    def written(self) -> int:
        """The number behind the last transaction that the program ended."""
        path = self.folder / "written"
        lines = path.read_text().splitlines() if path.exists() else []
        return int(lines[-1]) + 1 if lines else 0

    def await_written(self, goal: int) -> None:
        """Wait until the program has ended so many transactions."""
        until(lambda: self.written() >= goal, f"{self.written()} of {goal}")

    def kill(self, name: str) -> None:
        """kill -9."""
        if name == "database":
            self.database.server.kill()
            return
        process = self.running.pop(name)
        if name == "redis":
            process.kill()
        else:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if name == "program":
            # The transaction under way may be committed or not; its number isn't used again.
            self.next = self.written() + 1

    def close(self) -> None:
        """End all running processes."""
        for name in list(self.running):
            self.kill(name)
        self.log.close()


@pytest.fixture
def processes(database: Any, server: Any, short_folder: Path) -> Iterator[Processes]:
    folder = short_folder / f"d2-{database.kind}-{server.kind}"
    folder.mkdir()
    database.execute(
        "CREATE TABLE orders (number bigint PRIMARY KEY)",
        "CREATE TABLE runs (number bigint NOT NULL)",
    )
    found = Processes(database, server.kind, folder)
    try:
        for name in ("redis", "worker", "relay", "relay2", "program"):
            found.start(name)
        yield found
    finally:
        found.close()


@each_server_in_soak
@pytest.mark.parametrize("database", KINDS if SOAK else ["postgresql"], indirect=True)
@pytest.mark.timeout(7200 if SOAK else 600)
def test_nothing_is_lost_or_doubled_while_everything_is_killed(processes, database):
    luck = random.Random(7)
    victims = ["program", "relay", "relay2", "redis", "worker"]
    if database.server is not None:
        victims.append("database")
    luck.shuffle(victims)
    for kill in range(KILLS):
        processes.await_written((kill + 1) * TRANSACTIONS // (KILLS + 1))
        name = victims[kill % len(victims)]
        processes.kill(name)
        processes.start(name)
    until(lambda: processes.running["program"].poll() is not None)
    assert processes.running["program"].returncode == 0

    def settled() -> bool:
        counts = [
            database.rows(f"SELECT count(*) FROM {name}")[0][0] for name in ("jobq_outbox", "orders", "effects")
        ]  # fmt: skip
        return counts[0] == 0 and counts[1] == counts[2]

    deadline = time.monotonic() + (1800 if SOAK else 120)
    while not settled():
        assert time.monotonic() < deadline, (processes.folder / "log").read_text()[-5000:]
        time.sleep(0.05)
    orders = sorted(n for (n,) in database.rows("SELECT number FROM orders"))
    assert len(orders) > TRANSACTIONS / 4
    assert sorted(n for (n,) in database.rows("SELECT number FROM effects")) == orders
    assert {n for (n,) in database.rows("SELECT number FROM runs")} == set(orders)
