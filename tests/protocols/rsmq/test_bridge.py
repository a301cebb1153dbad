"""Lines in, lines out: in order, one for one, many at a time, whatever they hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jobq.errors import UnavailableError
from jobq.protocols.rsmq import Rsmq
from jobq.protocols.rsmq.bridge import Bridge

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def bridge(client: Any) -> Bridge:
    rsmq = Rsmq(client)
    return Bridge(rsmq.client, rsmq.requests)


def served(bridge: Bridge, *lines: bytes) -> list[Any]:
    """Its answers to these bytes, by way of real pipes."""
    read_in, write_in = os.pipe()
    read_out, write_out = os.pipe()

    def feed() -> None:
        for line in lines:
            os.write(write_in, line)
        os.close(write_in)

    def serve() -> None:
        bridge.serve(read_in, write_out)
        os.close(write_out)

    threads = [threading.Thread(target=feed), threading.Thread(target=serve)]
    for thread in threads:
        thread.start()
    with os.fdopen(read_out, "rb") as answers:
        found = [json.loads(line) for line in answers]
    for thread in threads:
        thread.join()
    os.close(read_in)
    return found


def call(n: Any, method: str, **options: Any) -> bytes:
    return json.dumps({"n": n, "method": method, "options": options}).encode() + b"\n"


def test_answers_come_in_the_order_of_the_calls_and_calls_take_effect_in_it(bridge):
    answers = served(
        bridge,
        call(1, "createQueue", qname="q") + call(2, "sendMessage", qname="q", message="x"),
        call(3, "receiveMessage", qname="q", vt=0) + call("four", "popMessageAsync", qname="q"),
        call(None, "listQueues"),
    )
    assert [answer["n"] for answer in answers] == [1, 2, 3, "four", None]
    assert answers[0] == {"n": 1, "result": 1}
    sent = answers[1]["result"]
    assert answers[2]["result"].keys() == {"id", "message", "rc", "fr", "sent"}
    assert answers[3]["result"]["id"] == sent
    assert answers[4]["result"] == ["q"]


def test_thousands_of_calls_are_answered_one_for_one(bridge):
    calls = [call(0, "createQueue", qname="q")]
    calls += [call(n, "sendMessage", qname="q", message=str(n)) for n in range(1, 3_000)]
    answers = served(bridge, b"".join(calls))
    assert [answer["n"] for answer in answers] == list(range(3_000))
    ids = [answer["result"] for answer in answers[1:]]
    assert ids == sorted(ids)


def test_calls_that_arrive_together_travel_together(bridge, client, redis):
    rsmq = Rsmq(client)
    rsmq.create_queue("q")
    redis.config_resetstat()
    list(bridge.answer([call(n, "sendMessage", qname="q", message="x") for n in range(1_000)]))
    ran = redis.info("commandstats")
    assert ran["cmdstat_eval"]["calls"] + ran["cmdstat_evalsha"]["calls"] == 1_000
    assert redis.info("stats")["total_reads_processed"] < 100


def test_line_may_come_in_pieces_and_the_last_without_an_end(bridge):
    line = call(1, "createQueue", qname="q")
    assert served(bridge, line[:7], line[7:], b"\n\n", call(2, "listQueues").rstrip()) == [
        {"n": 1, "result": 1}, {"n": 2, "result": ["q"]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "name", "n"),
    [(b"nonsense\n", "SyntaxError", None), (b"[1]\n", "SyntaxError", None), (b"\xff\n", "SyntaxError", None),
     (call(7, "dropTable"), "TypeError", 7), (b'{"n": 8}\n', "TypeError", 8),
     (b'{"n": 9, "method": "createQueue"}\n', "missingParameter", 9),
     (b'{"n": 9, "method": "createQueue", "options": 5}\n', "missingParameter", 9),
     (b'{"n": 9, "method": "popMessage", "options": {"qname": "\\ud800"}}\n', "invalidFormat", 9),
     (b'{"n": "\\ud800", "method": "\\udfff"}\n', "TypeError", "\ud800"),
     (b'{"n": 9, "method": "popMessage", "options": {"qname": "\\udfff b"}}\n', "invalidFormat", 9)],
)  # fmt: skip
def test_bad_line_is_answered_by_an_error_and_the_next_is_served(bridge, line, name, n):
    bad, good = served(bridge, line, call(10, "listQueues"))
    assert (bad["n"], bad["error"]["name"]) == (n, name)
    assert bad["error"]["message"]
    assert good == {"n": 10, "result": []}


def test_line_of_absurd_size_is_answered_by_an_error_and_the_next_is_served(bridge):
    long, deep, good = served(
        bridge,
        call(1, "createQueue", qname="q", vt="9" * 5_000),
        b"[" * 200_000 + b"\n",
        call(2, "listQueues"),
    )
    assert long["error"]["name"] == "invalidValue"
    assert deep["error"]["name"] == "SyntaxError"
    assert good == {"n": 2, "result": []}


def test_quit_is_answered_and_ends_it(bridge):
    assert served(bridge, call(1, "quit") + call(2, "listQueues")) == [{"n": 1, "result": "OK"}]


def test_server_that_is_away_is_every_call_s_error(bridge, monkeypatch):
    def away(*_: Any) -> None:
        raise UnavailableError("no answer")

    monkeypatch.setattr(bridge._flights._client, "perform", away)
    [one, other] = served(bridge, call(1, "listQueues") + call(2, "listQueues"))
    assert one["error"] == other["error"] == {"name": "UnavailableError", "message": "no answer"}


def test_command_serves_a_process_of_any_language(server, redis):
    lines = call(1, "createQueue", qname="q") + call(2, "getQueueAttributes", qname="q")
    ran = subprocess.run(
        [sys.executable, "-m", "jobq", "rsmq", "bridge", "--url", server.url], input=lines, timeout=60,
        capture_output=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    created, described = [json.loads(line) for line in ran.stdout.splitlines()]
    assert created == {"n": 1, "result": 1}
    names = [
        "vt",
        "delay",
        "maxsize",
        "totalrecv",
        "totalsent",
        "created",
        "modified",
        "msgs",
        "hiddenmsgs",
    ]
    assert list(described["result"]) == names
