"""T5: faults of the server's Lua engine, and any other reach beyond a user's part: ACL users from the scripts."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pytest
import redis as redis_py

from jobq.cli import main
from jobq.client import functions
from jobq.client.connection import connect
from jobq.client.scripts import folder, load
from jobq.config import ServerSettings
from jobq.errors import JobqError, ScriptError
from jobq.flows import keys as flow_keys
from jobq.observe.facts import Collector
from jobq.observe.why import why
from jobq.queue import orders, presence
from jobq.queue import roles as rights
from jobq.queue.doctor import Facts, diagnose
from jobq.queue.orders import OrderAnswer
from jobq.queue.partitioning import created
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

ROOT = Path(__file__).resolve().parents[2]
USERS = (*rights.ROLES, rights.DEPLOYER)
#: Rights that no user has: every way to run Lua, to read or change everything, to reach other users or the host.
DENIED = [
    "FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG SET maxmemory 1", "CONFIG GET *", "EVAL 'return 1' 0", "EVALSHA 00 0",
    "EVAL_RO 'return 1' 0", "SCRIPT LOAD 'return 1'", "SCRIPT FLUSH", "FUNCTION FLUSH", "FUNCTION RESTORE x",
    "DEBUG SLEEP 0", "MODULE LIST", "REPLICAOF NO ONE", "MIGRATE h 1 k 0 1", "RESTORE jobq:{low}:x 0 x", "ACL LIST",
    "MONITOR", "SHUTDOWN", "SCAN 0", "SWAPDB 0 1", "CLIENT KILL TYPE normal", "CLIENT LIST", "DUMP jobq:{low}:meta",
    "RENAME jobq:{low}:meta jobq:{low}:x", "COPY jobq:{low}:meta jobq:{low}:x", "SORT jobq:{low}:ready",
    "HGETALL jobq:{low}:messages", "SMEMBERS jobq:{low}:done", "GET other", "SET other 1", "INFO", "SUBSCRIBE x",
    "HGET other:{low}:messages m", "DEL jobq:queues", "DEL jobq:workers", "CLUSTER NODES", "SLOWLOG GET",
    "DEL jobq:flows", "HGETALL other:flow:{a:1}:meta",
    "CLIENT TRACKING ON BCAST", "CLIENT CACHING YES", "SELECT 1", "CLIENT NO-EVICT ON", "CLIENT PAUSE 1",
]  # fmt: skip


@pytest.fixture
def login(users, server):
    """login("worker"): a client of that role's user, which calls functions."""
    made = []

    def connected(role):
        url = server.url.replace("unix://", f"unix://jobq_{role}:x@")
        made.append(connect(settings=ServerSettings(url=url, functions=True, patience_s=10)))
        return made[-1]

    yield connected
    for one in made:
        one.close()


@pytest.mark.parametrize("role", USERS)
def test_users_may_nothing_beyond_their_part(users, redis, role):
    allowed = []
    for line in DENIED:
        reply = redis.execute_command("ACL", "DRYRUN", f"jobq_{role}", *shlex.split(line))
        if reply in (b"OK", True):
            allowed.append(line)
    assert not allowed


@pytest.mark.parametrize("role", USERS)
def test_users_may_send_no_connection_command_beside_the_harmless_ones(users, redis, role):
    """A command that a later server adds to the category is looked at before users may send it."""
    harmless = {
        "asking", "auth", "echo", "hello", "ping", "quit", "readonly", "readwrite", "reset", "client|getname",
        "client|getredir", "client|help", "client|id", "client|info", "client|no-touch", "client|reply",
        "client|setinfo", "client|setname", "client|trackinginfo", "client|import-source",
        "client|capa", "wait", "waitaof",
    }  # fmt: skip
    if role == "worker":
        harmless.add("client|unblock")
    names = [
        *redis.execute_command("ACL", "CAT", "connection"),
        *redis.execute_command("COMMAND LIST", "FILTERBY", "ACLCAT", "connection"),
    ]
    answers = {}
    for name in {one.decode() for one in names if not one.startswith(b"command")}:
        for more in range(4):
            words = (*name.split("|"), *["1"] * more)
            # It takes another number of arguments:
            with contextlib.suppress(redis_py.ResponseError):
                answers[name] = redis.execute_command("ACL", "DRYRUN", f"jobq_{role}", *words)
    families = {"command", "client"}
    assert {one.decode().partition("|")[0] for one in names} - families <= answers.keys()
    allowed = {name for name, reply in answers.items() if reply in (b"OK", True)}
    assert allowed - harmless == set()


@pytest.mark.parametrize("role", rights.ROLES)
def test_users_select_only_the_database_of_the_url_that_acl_was_given(users, redis, role, capsys):
    assert main(["acl", role, "--url", "redis://nowhere/2"]) == 0
    redis.execute_command(*shlex.split(capsys.readouterr().out))
    replies = [redis.execute_command("ACL", "DRYRUN", f"jobq_{role}", "SELECT", n) for n in (2, 1)]
    assert replies[0] in (b"OK", True)
    assert replies[1] not in (b"OK", True)


@pytest.mark.parametrize("role", rights.ROLES)
def test_users_may_call_every_script_of_flows_that_is_theirs_and_no_other(users, redis, role):
    allowed = set()
    for path in (folder() / "flow").glob("[!_]*.lua"):
        script = load("flow", path.stem)
        verb, function = functions.called(script)
        names = [flow_keys.base("jobq", "a:1") + key for key in script.keys]
        reply = redis.execute_command(
            "ACL", "DRYRUN", f"jobq_{role}", verb, function, len(names), *names
        )
        allowed |= {path.stem} if reply in (b"OK", True) else set()
    asked = rights.ROLES[role]
    assert allowed >= set(asked.flows)
    # A user may call what it has the commands for; who only reads may call nothing that writes.
    assert not asked.reads or allowed <= {"look", "page", "read"}
    assert bool(allowed) == bool(asked.flows)
    reply = redis.execute_command(
        "ACL", "DRYRUN", f"jobq_{role}", "ZRANGE", flow_keys.flow_names("jobq"), 0, 1
    )
    assert (reply in (b"OK", True)) == ("zrange" in asked.flow_names)


@pytest.mark.parametrize("role", sorted({*USERS} - {"operator"}))
def test_only_operators_order_workers(users, redis, role):
    reply = redis.execute_command("ACL", "DRYRUN", f"jobq_{role}", "RPUSH", "jobq:orders:w", "{}")
    assert reply not in (b"OK", True)


def test_each_user_does_its_part_live(login, redis):
    roles = ("producer", "worker", "dashboard", "operator")
    producer, worker, dashboard, operator = (Queue("low", login(role)) for role in roles)
    assert [one.action for one in producer.enqueue_many([(f"m{n}", b"{}") for n in range(9)])]
    producer.enqueue(b"{}", mid="late", delay=60)
    producer.enqueue(b"[]", mid="m0", on_conflict="replace")
    assert producer.cancel("m8")[0] == "cancelled" and producer.status("m0").word == "queued"
    taken = worker.dequeue(4).messages
    assert worker.progress(taken[0].mid, taken[0].token, "half")
    outcomes = ("done", "retry", "dead", "crashed")
    worker.finish(
        [Ending(mid=one.mid, token=one.token, outcome=how, result=b"1" if how == "done" else None, result_ttl=9)
         for one, how in zip(taken, outcomes, strict=True)], dequeue=1,
    )  # fmt: skip
    worker.admin.collect()
    presence.put_worker(
        worker.client, "w", {"seen_at": 0, "started_at": 1, "lease_ms": 0, "queues": []}
    )
    presence.put_running(worker.client, "w", [])
    presence.put_jobs(worker.client, ["a.b"])
    known = presence.digest_of(["a.b"])
    presence.put_redactions(worker.client, {"a.b": ["pin"]}, may_replace=True)
    presence.put_redactions(worker.client, {"a.b": ["pin"]}, may_replace=False)
    worker.store_log("m1", 1, b"a line", 60)
    for one in (dashboard, operator):
        assert one.admin.log("m1", 1) == b"a line"
        assert presence.redactions(one.client, ["a.b"]) == {"a.b": ("pin",)}
    for one in (dashboard.client, operator.client):
        assert presence.workers(one) and presence.running(one, ["w"]) == {"w": ()}
        assert presence.job_names(one, [known]) == {known: {"a.b"}}
        collector = Collector(Queue("low", one))
        assert why(collector.collect("late"))[0].code == "delayed" and collector.unread == {}
    [entry] = presence.some_workers(operator.client, ["w"]).values()
    live = entry._replace(seen_at=operator.client.clock_ms(), lease_ms=9_000)
    order_id = orders.send(operator.client, live, "quiet")
    [order] = orders.waiting_for(worker.client, "w", entry.pid, entry.started_at)
    orders.put_answer(worker.client, order.order_id, OrderAnswer("w", "quiet", "done", "…"))
    for one in (dashboard.client, operator.client):
        assert orders.answer(one, order_id)
    presence.remove_stale(worker.client)
    presence.forget_worker(worker.client, "w")
    assert worker.admin.counts() == dashboard.admin.counts() and dashboard.admin.counts().dead == 1
    assert dashboard.admin.content("ready").entries and dashboard.admin.fsck() == []
    operator.admin.pause()
    operator.admin.resume()
    operator.admin.events_level("all")
    assert operator.admin.revive(operator.admin.dead()[0].dead_id) == ["revived"]
    assert operator.admin.purge() == 0 and operator.cancel("late")[0] == "cancelled"
    assert operator.admin.clear() > 0
    assert not redis.execute_command("ACL", "LOG")


def test_deployer_brings_functions_and_touches_no_key(login, redis):
    deployer = login("deployer")
    functions.load_library(deployer)
    functions.check_library(deployer)
    for command in (("GET", "x"), ("SADD", "jobq:queues", "x"), ("FCALL", "x", 0)):
        with pytest.raises(JobqError, match=r"permission|No permissions"):
            deployer.command(*command)


def test_user_of_one_queue_reaches_no_other(redis, server, client, capsys):
    functions.load_library(client)
    assert main(["acl", "producer", "--user", "shop", "--queues", "shop*,till"]) == 0
    redis.execute_command(*shlex.split(capsys.readouterr().out), ">x")
    url = server.url.replace("unix://", "unix://shop:x@")
    shop = connect(settings=ServerSettings(url=url, functions=True, patience_s=10))
    for name in ("shop*", "till"):
        assert Queue(name, shop).enqueue(b"{}").action == "added"
    for name in ("shopping", "low", "till/x", "till/2026-x", "till/0x", "low/0"):
        with pytest.raises(ScriptError, match="permission"):
            Queue(name, shop).enqueue(b"{}")
    redis.execute_command("DEL", "jobq:{till}:messages", "jobq:{till}:ready")
    assert created(shop, "till", 2).newest.size == 2
    assert {Queue("till", shop).enqueue(b"{}").partition[:5] for _ in range(8)} == {"till/"}
    shop.close()
    redis.execute_command("ACL", "DELUSER", "shop")
    redis.function_flush()


def test_printed_users_can_not_log_in_before_they_get_a_password(redis, server, capsys):
    assert main(["acl", "producer"]) == 0
    printed = capsys.readouterr()
    assert ">" not in printed.out and "nopass" not in printed.out and "password" in printed.err
    redis.execute_command(*shlex.split(printed.out))
    with redis_py.Redis(
        unix_socket_path=server.socket, username="jobq_producer", password=""
    ) as nobody:
        with pytest.raises((redis_py.AuthenticationError, redis_py.ResponseError)):
            nobody.ping()
    redis.execute_command("ACL", "DELUSER", "jobq_producer")


def test_acl_file_loads(server, tmp_path, capsys):
    from tests.conftest import answering, binary, start

    assert main(["acl", "--file"]) == 0
    lines = capsys.readouterr().out
    (tmp_path / "users.acl").write_text(f"user default on nopass ~* &* +@all\n{lines}")
    process = start(binary(server.kind), tmp_path, "--port", "0", "--unixsocket", f"{tmp_path}/s",
                    "--aclfile", f"{tmp_path}/users.acl")  # fmt: skip
    try:
        answering(process, tmp_path, unix_socket_path=f"{tmp_path}/s")
        with redis_py.Redis(unix_socket_path=f"{tmp_path}/s") as opened:
            assert len(opened.acl_users()) == 1 + len(USERS)
    finally:
        process.kill()
        process.wait()


def test_every_word_taken_for_a_command_is_one(redis):
    found = rights.script_commands()
    assert {"hset", "lpush", "rpush", "sscan", "hscan", "time", "xadd"} <= set(found)
    known = redis.execute_command("COMMAND", "INFO", *found)
    assert all(known.values() if isinstance(known, dict) else known)


def test_bad_roles_are_refused(capsys):
    assert main(["acl", "root"]) == 2
    with pytest.raises(JobqError, match="use one of producer"):
        rights.rights("root")
    assert main(["acl", "--json", "deployer"]) == 0
    assert '"+function|load"' in capsys.readouterr().out


def test_scripts_answer_errors_in_words_of_their_own_and_search_by_no_pattern():
    """CVE-2025-67733: values written by others must not be returned inside an error reply."""
    arguments = (folder() / "shared" / "_arguments.lua").read_text()
    for script in functions.scripts():
        text = script.text.replace(arguments, "")
        answered = re.findall(r"error_reply\(([^\n]*)", text)
        assert all(re.match(r"'[^']*'\)", words) for words in answered), script.name
        # The one function that raises is given names of arguments, and words of the scripts.
        named = (
            []
            if text == script.text
            else re.findall(r"\b(?:refuse|whole|whole_or_none|one_of)\(([^,\n]*),[^\n]*", text)
        )
        assert all(re.fullmatch(r"'[^']*'", name) for name in named), script.name
        assert not re.search(r"refuse\([^\n]*ARGV", text)
        # The reply of a guarded command is never passed on: it becomes a number, or counts only as a string.
        text = re.sub(r"redis\.pcall\('(?:XADD|HINCRBY)'", "", text)
        text = re.sub(r"not tonumber\(redis\.pcall\('RPUSH'", "", text)
        text = re.sub(r"tonumber\([^\n]*redis\.pcall\('HGET'", "", text)
        text = re.sub(r"redis\.pcall\('HLEN'[^\n]*\n *count = tonumber\(count\) or 0", "", text)
        text = re.sub(r"(\w+) = redis\.pcall\('GET'[^\n]*\n *if type\(\1\) == 'string'", "", text)
        # A guarded first write is undone; then the server's own error is the answer, as without the guard.
        text = re.sub(
            r"(\w+) = redis\.pcall\('HDEL', locks,[^\n]*\n *if type\(\1\) == 'table'", "", text
        )
        assert not re.search(r"\berror\(|'MATCH'|'KEYS'|'SCAN'|loadstring|redis\.pcall", text)


@pytest.mark.parametrize(
    ("kind", "number", "level"),
    [("redis", "7.2.10", "warn"), ("redis", "7.2.11", "ok"), ("redis", "7.4.5", "warn"), ("redis", "8.2.1", "warn"),
     ("redis", "8.2.2", "ok"), ("redis", "8.6.0", "ok"), ("redis", "7.0.15", "ok"), ("valkey", "8.1.3", "warn"),
     ("valkey", "8.1.8", "ok"), ("valkey", "9.0.0", "ok"), ("valkey", "8.0.5", "warn"), ("redis", "", None)],
)  # fmt: skip
def test_doctor_tells_of_versions_without_the_fixes(kind, number, level):
    info = {"redis_version": "7.2.4"} if kind == "valkey" and number else {}
    found = diagnose(
        Facts(url="unix:///s", info={**info, f"{kind}_version": number}, pings_ms=[0.1])
    )
    patched = [one for one in found if one.check == "patched"]
    assert [one.level for one in patched] == ([level] if level else [])
    assert level != "warn" or "update to" in patched[0].remedy
