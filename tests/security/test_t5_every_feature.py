"""T5: every feature runs under the users that `jobq acl` prints. The server logs each refusal; there may be none."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from jobq import Batch, Flow, Queue
from jobq.cli import main
from jobq.cli.acl import MORE, ROLES
from jobq.cli.app import app
from jobq.client.connection import Client, connect
from jobq.client.functions import load_library
from jobq.config import CodecSettings, ServerSettings, parse_codec_keys
from tests.lifecycle.conftest import until
from tests.security import jobs_of_every_kind as jobs
from tests.web.shop import Shop

pytestmark = pytest.mark.one_server
ROOT = Path(__file__).resolve().parents[2]
#: Excluded commands, and why.
ELSEWHERE = {
    "acl": "sends nothing", "migrate check": "sends nothing", "completion": "sends nothing",
    "schedule next": "sends nothing",
    "schedule lint": "sends nothing",
    "outbox schema": "sends nothing", "lake ddl": "sends nothing", "spark env": "sends nothing",
    "demo": "starts a server of its own", "chaos": "starts servers of its own",
    "embedded status": "is for the embedded server", "embedded stop": "is for the embedded server",
    "web user add": "writes a file", "web user list": "reads a file", "web user remove": "writes a file",
    "web token add": "writes a file", "web token remove": "writes a file",
    "outbox status": "asks a database", "outbox retry": "asks a database", "outbox purge": "asks a database",
    "metrics": "test_metrics_user.py", "outbox relay": "sends what a producer sends",
    "worker": "test_everything_that_jobs_use_runs_under_the_users_of_producer_and_worker",
    "spark doctor": "tests/pipeline/test_rights.py", "spark shell": "tests/pipeline/test_rights.py",
    "lake ingest": "tests/pipeline/test_rights.py", "lake stats": "tests/pipeline/test_rights.py",
    "lake check": "reads files", "lake compact": "reads files", "lake vacuum": "reads files",
    "lake expire": "reads files", "lake mark": "reads files", "lake audit": "tests/pipeline/test_rights.py",
    "lake erase": "tests/pipeline/test_rights.py", "lake replay": "tests/pipeline/test_rights.py",
    "report": "reads files", "reliable list": "needs SCAN, and no user may list keys",
    "check doctor": "asks for settings of the server, which no user may read, and says so",
    "ruby push": "its queues are Ruby's", "ruby claims": "its queues are Ruby's",
    "rsmq bridge": "its queues are of two systems", "check audit": "tests/pipeline/test_rights.py",
}  # fmt: skip
#: Command lines by their user, in this order.
LINES = {
    "deployer": ("functions load", "functions check"),
    "producer": ("enqueue shop.mail.send_receipt 7 --queue mails --mid by-hand",
                 "status by-hand --queues mails", "cancel by-hand --queues mails"),
    "dashboard": (
        "queues", "queues mails", "partitions images", "workers", "running", "status order-1042 --queues mails",
        "why order-1042 --queues mails",
        "queue peek mails", "key list mails", "dead list payments", "dead show {dead}",
        "limit list", "events tail mails", "flow list", "flow show import:2026-11-23",
        "flow graph import:2026-11-23", "schedule list", "schedule history nightly-digest", "audit-log",
        "check fsck", "topic list", "topic groups orders", "topic describe orders", "topic lag orders",
        "topic peek orders --group billing", "reliable info invoices", "reliable length invoices",
        "reliable inspect invoices 0 9", "rsmq queue list", "rsmq queue describe -n sms", "rsmq message peek -n sms",
        "ruby queues", "ruby peek --sidekiq default", "ruby workers",
    ),
    "operator": (
        "pause mails", "resume mails", "key set mails --max 2", "key set mails acme --weight 3",
        "key hold mails acme 1s",
        "dead revive {dead}", "dead retention payments --max 100", "dead purge --queues payments --all --yes",
        "events level all --queues mails", "events maxlen 1000 --queues mails",
        "flow signal import:2026-11-23 approved",
        "flow retry import:2026-11-23", "flow check import:2026-11-23", "flow cancel import:2026-11-23 --yes",
        "flow delete import:2026-11-23", "schedule add hourly shop.mail.send_receipt --cron '0 * * * *' --queue mails",
        "schedule pause hourly", "schedule resume hourly", "schedule run-now hourly", "schedule delete hourly",
        "limit set smtp 5/s", "limit hold smtp 1s", "limit unset smtp", "topic pause orders --group billing",
        "topic resume orders --group billing", "topic seek orders --group billing --to latest",
        "check fsck --repair --yes", "control quiet web-7:4711 --wait 0", "key set images acme --max 4",
        "partitions images 2", "partitions images 3", "queue purge images --yes",
        "queue delete images",
    ),
    "topic": (
        "topic append orders a b", "topic subscribe orders --group mail", "topic poll orders --group mail",
        "topic read orders", "topic retention orders --max-count 10", "topic compaction orders off",
        "topic unsubscribe orders --group mail", "topic delete orders --yes",
    ),
    "reliable": (
        "reliable push k a b c", "reliable pop 2 0 k", "reliable ack k {id}", "reliable nack k {id}",
        "reliable release k {id}", "reliable extend k {id}", "reliable recover k 1 0",
        "reliable configure k --max-deliveries 2", "reliable revive k {id}", "reliable purge k {id}",
        "reliable clear k --yes", "reliable delete k --yes",
    ),
    "rsmq": (
        "rsmq queue create -n q", "rsmq queue set -n q --visibility-timeout 5", "rsmq message send -n q -m hi",
        "rsmq message receive -n q",
        "rsmq message pop -n q", "rsmq message visibility -n q -i {rsmq} -t 1", "rsmq message delete -n q -i {rsmq}",
        "rsmq queue repair -n q", "rsmq queue purge -n q --yes", "rsmq queue redrive -n q --to q2",
        "rsmq queue delete -n q",
    ),
}  # fmt: skip


#: Who writes the audit log. Commands of other users report their lack of rights.
WRITE_AUDIT = ("operator",)
#: `jobq status` shows a producer where a message is alone: events and running jobs also belong to others.
SHOWS_LESS = {
    "status by-hand --queues mails": {
        "jobq_producer command lpos", "jobq_producer command ttl", "jobq_producer command type",
        "jobq_producer command xrevrange", "jobq_producer key jobq:jobs", "jobq_producer key jobq:running",
    }
}  # fmt: skip


def leaves(verb: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every command below a group."""
    if not isinstance(verb, click.Group):
        yield " ".join(words)
        return
    context = click.Context(verb)
    if words and words[-1] in ("queues", "workers", "report"):
        yield " ".join(words)
    for name in verb.list_commands(context):
        inner = verb.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*words, name))


def printed(redis: Any, capsys: Any, *words: str) -> None:
    """Make the users that `jobq acl` prints."""
    assert main(["acl", *words]) == 0
    for line in capsys.readouterr().out.splitlines():
        redis.execute_command(*shlex.split(line), ">x")


@pytest.fixture
def users(server: Any, redis: Any, client: Client, capsys: Any) -> Iterator[Callable[[str], str]]:
    """users("worker"): the URL of the user of that role, as `jobq acl` prints it."""
    load_library(client)
    for words in ((), *((role,) for role in MORE)):
        printed(redis, capsys, *words)
    redis.execute_command("ACL", "LOG", "RESET")
    yield lambda role: server.url.replace("unix://", f"unix://jobq_{role}:x@")
    for role in (*ROLES, *MORE):
        redis.execute_command("ACL", "DELUSER", f"jobq_{role}")
    redis.function_flush()


def refusals(redis: Any) -> list[str]:
    """Record the rejected commands of users."""
    found = [dict(zip(row[::2], row[1::2], strict=True)) if isinstance(row, list) else row
             for row in redis.execute_command("ACL", "LOG")]  # fmt: skip
    redis.execute_command("ACL", "LOG", "RESET")
    return [
        " ".join(row[word].decode() for word in (b"username", b"reason", b"object"))
        for row in found
    ]


def test_every_command_is_in_the_list_or_says_why_not():
    listed = {line for lines in LINES.values() for line in lines}
    missing = {
        name
        for name in leaves(app)
        if name not in ELSEWHERE and not any(line.split()[: name.count(" ") + 1] == name.split() for line in listed)
    }  # fmt: skip
    assert missing == set()


def test_commands_of_a_role_are_never_refused_a_right(
    users: Any, redis: Any, client: Client, monkeypatch: Any, capsys: Any
):
    Shop(client).fill()
    given = {
        "dead": Queue("payments", client).admin.dead()[0].dead_id,
        "rsmq": "x" * 32,
        "id": "1601155608777-1",
    }
    monkeypatch.setenv("JOBQ_FUNCTIONS", "1")
    wrong = {}
    for role, line in ((role, line) for role, lines in LINES.items() for line in lines):
        code = main([*shlex.split(line.format(**given)), "--url", users(role)])
        refused = {*refusals(redis)} - SHOWS_LESS.get(line, set())
        if role not in WRITE_AUDIT:
            refused = {one for one in refused if not one.endswith("key jobq:audit")}
        if refused or code == 2:
            wrong[role, line] = (code, refused, capsys.readouterr().err)
    assert wrong == {}, "\n".join(f"{line}: {why}" for line, why in wrong.items())


@pytest.mark.parametrize("queues", ["", "low,high"])
def test_everything_that_jobs_use_runs_under_the_users_of_producer_and_worker(
    users: Any, redis: Any, tmp_path: Path, capsys: Any, queues: str
):
    for role in ("producer", "worker") if queues else ():
        printed(redis, capsys, role, "--queues", queues)
    keys = {"JOBQ_CODEC": "sign", "JOBQ_CODEC_KEYS": f"k1:{'abcd' * 11}"}
    codec = CodecSettings(keys=parse_codec_keys(keys["JOBQ_CODEC_KEYS"]), mode="sign")
    settings = ServerSettings(url=users("producer"), functions=True, patience_s=10, codec=codec)
    producer = connect(settings=settings)
    flow = whole(producer)
    run = flow.start()
    run.signal("approved", {"by": "ann"})
    batch = Batch(jobs.adds, [jobs.adds.args([1], "fail"), jobs.adds.args([2])], client=producer)
    batch.then(jobs.listed, 1).on_failure(jobs.alert, batch.failures)
    batched = batch.start()
    cancelled = Flow("import", "2", queue="low", client=producer)
    cancelled.wait("never")
    cancelled.start().cancel()
    receipt = jobs.works.options(client=producer, expires_in=60).enqueue(1, "x")
    jobs.works.options(client=producer).enqueue_many([(n,) for n in range(5)])
    asyncio.run(jobs.waits.options(client=producer).aenqueue())
    for customer in ("a", "a", "late"):
        jobs.keyed.options(client=producer).enqueue(customer)
    for _ in range(2):
        jobs.once.options(client=producer).enqueue(1)
    jobs.works.options(client=producer, delay=60, mid="m").enqueue(1)
    assert jobs.works.options(client=producer).receipt("m").cancel()
    for made in (jobs.dies, jobs.crashes, jobs.beats):
        made.options(client=producer).enqueue()
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JOBQ_URL": users("worker"),
        "JOBQ_FUNCTIONS": "1",
        **keys,
    }
    words = [
        "worker",
        "--processes",
        "2",
        "--lease",
        "30s",
        "--import",
        jobs.__name__,
        "--queues",
        "low,high",
    ]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "jobq", *words], cwd=ROOT, env=env, stdout=log, stderr=log
        )
    try:
        assert receipt.result(timeout=60) == 2
        assert asyncio.run(receipt.aresult(timeout=60)) == 2
        assert run.wait(60).state == "done" and run.result("adds") == 3
        assert batched.wait(60).state == "failed"
        batched.retry()
        until(
            lambda: not redis.xlen("jobq:{low}:flow-outbox") + redis.xlen("jobq:{high}:flow-outbox")
        )
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
    producer.close()
    # Once for each process of a producer: whether it may deliver its entries to the flow, which is a worker's part.
    assert refusals(redis) == ["jobq_producer command xrange"], (tmp_path / "log").read_text()[
        -5000:
    ]


def whole(client: Client) -> Flow:
    """A flow with a step of each kind."""
    flow = Flow("import", "1", queue="low", client=client)
    numbers = flow.step(jobs.listed, 3)
    flow.map(jobs.listed, range(300), name="streamed")
    many = flow.map(jobs.listed, numbers.result, name="many", results=True)
    gate = flow.wait("approved", timeout="1h", after=many)
    late = flow.at(time.time() + 0.1, name="later")
    total = flow.step(
        jobs.adds, numbers.result, [gate.value, many.results], after=late, name="adds"
    )
    sub = Flow("sub")
    sub.step(jobs.grows)
    flow.flow(sub, after=[total])
    flow.map(
        jobs.listed.options(key="k"), [jobs.listed.args(2), (3,)], after=numbers, name="stored"
    )
    return flow
