"""The Function library: the same verbs for any client that can FCALL, under names that stay."""

from __future__ import annotations

import subprocess

import pytest

from jobq.cli import main
from jobq.client.connection import connect
from jobq.client.functions import area_library
from jobq.client.functions import library as engine_library
from jobq.config import ServerSettings
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable.keys import places


@pytest.fixture(autouse=True)
def unloaded(redis):
    redis.function_flush()
    yield
    redis.function_flush()


@pytest.mark.parametrize("chosen", ["reliable", "all"])
def test_command_brings_and_checks_the_library(client, redis, capsys, chosen):
    assert main(["functions", "check", "--url", client.url, "--library", chosen]) == 4
    assert main(["functions", "load", "--url", client.url, "--library", chosen]) == 0
    assert main(["functions", "check", "--url", client.url, "--library", chosen]) == 0
    assert "reliable: 13 functions on 1 node" in capsys.readouterr().out
    loaded = {bytes(one[1]).decode() for one in redis.function_list()}
    assert loaded == {"reliable"} | ({engine_library().name, "topic"} if chosen == "all" else set())


def test_functions_that_only_read_may_be_called_so(fcall, redis):
    fcall("push", ["q"], "a")
    keys = places("reliable", "q")
    assert redis.execute_command("FCALL_RO", "reliable_info", 8, *keys)[1] == 1
    assert len(redis.execute_command("FCALL_RO", "reliable_inspect", 8, *keys, 0, 5)) == 1
    with pytest.raises(Exception, match="write flag"):
        redis.execute_command("FCALL_RO", "reliable_pop", 8, *keys)


def test_python_and_any_other_client_share_a_queue(rq, fcall):
    [id] = rq.push("q", "from python")
    [other] = fcall("push", ["q"], "from elsewhere")
    assert fcall("pop", ["q"], "TOKEN", "elsewhere") == [[b"q", id.encode(), b"from python"]]
    assert [one.id for one in rq.pop(1, 0, "q")] == [other.decode()]
    assert rq.ack("q", id, token="python") == []
    assert fcall("ack", ["q"], "TOKEN", "elsewhere", id) == [id.encode()]


def test_other_client_waits_by_a_ticket(rq, fcall, redis):
    rq.push("q", "a", "b")
    key, ticket = redis.blpop("reliable:{q}:tickets", 5)
    assert key == b"reliable:{q}:tickets"
    assert [row[2] for row in fcall("pop", ["q"], "TICKET", ticket)] == [b"a"]
    assert rq.length("q") == 1 and rq.info("q").promised == 0


def test_user_who_may_bring_no_code_does_everything(rq, client, redis, server):
    """JOBQ_FUNCTIONS=1: the client calls the engine's library, which has these scripts too."""
    main(["functions", "load", "--url", client.url])
    redis.script_flush()
    rights = ("~reliable:*", "+@all", "-@scripting", "+fcall", "+fcall_ro")
    redis.execute_command("ACL", "SETUSER", "caller", "reset", "on", "nopass", *rights)
    url = server.url.replace("unix://", "unix://caller:x@")
    other = ReliableQueue(connect(settings=ServerSettings(url=url, functions=True)))
    [id] = other.push("q", "a")
    assert [one.id for one in other.pop(1, 0, "q")] == [id]
    assert other.clear("q") == 1 and other.info("q").last_id == id
    redis.execute_command("ACL", "DELUSER", "caller")


def test_library_is_named_apart_from_those_of_versions():
    assert area_library("reliable").name == "reliable"
    words = {word for _, word in area_library("reliable").commands.values()}
    assert {
        "reliable_push",
        "reliable_pop",
        "reliable_ack",
        "reliable_recover",
        "reliable_inspect",
    } < words


NODE = """
const net = require('net')
const encode = (args) => `*${args.length}\\r\\n` + args.map((a) => `$${Buffer.byteLength(a)}\\r\\n${a}\\r\\n`).join('')
const keys = ['undelivered', 'tickets', 'delivered', 'messages', 'unacked', 'tokens', 'dead', 'meta']
  .map((place) => `reliable:{q}:${place}`)
const socket = net.connect(process.argv[2])
socket.on('data', (data) => { process.stdout.write(data); socket.end() })
socket.write(encode(['FCALL', 'reliable_pop', '8', ...keys, 'COUNT', '2']))
"""


@pytest.mark.needs("node")
def test_node_without_any_library_pops_what_python_pushed(rq, fcall, server):
    first, second = rq.push("q", "a", "b")
    said = subprocess.run(
        ["node", "-e", NODE, "--", "x", server.socket],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert [word for word in said if word[0] not in "$*"] == ["q", first, "a", "q", second, "b"]
