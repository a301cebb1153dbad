"""Every script and every command within, against every role: by ACL DRYRUN, and live."""

from __future__ import annotations

import pytest

from jobq.client import functions
from jobq.client.connection import connect
from jobq.client.scripts import folder, load
from jobq.config import ServerSettings
from jobq.errors import JobqError
from jobq.queue import roles as rights

SCRIPTS = sorted(path.stem for path in (folder() / "queue").glob("[!_]*.lua"))
PAIRS = [(role, name) for role in rights.ROLES for name in SCRIPTS]
INSIDE = [(role, name) for role, name in PAIRS if name in rights.ROLES[role].scripts]
#: Outside of a role's part, and yet of commands alone that its part needs too: rights can't tell them apart.
INSEPARABLE = {
    "producer": "checkpoint close dead edit extend hold pause progress purge put_back release "
    "reschedule resume retention revive set_event_level set_limits take_out why",
    "worker": "content edit hold lines pause purge put_back reschedule resume retention revive set_event_level "
    "set_limits take_out why",
    "dashboard": "", "metrics": "",
    "operator": "checkpoint close collect enqueue enqueue_plain extend progress release",
}  # fmt: skip
FAR = [
    (role, name)
    for role, name in PAIRS
    if name not in rights.ROLES[role].scripts and name not in INSEPARABLE[role].split()
]


@pytest.fixture
def allowed(redis, users):
    """allowed("worker", "GET", "x"): whether that role may."""

    def ask(role, *command):
        reply = redis.execute_command("ACL", "DRYRUN", f"jobq_{role}", *command)
        return reply in (b"OK", True)

    return ask


def call(redis, name):
    """A call of a command with arguments enough, its keys being a queue's."""
    [facts] = redis.execute_command("COMMAND", "INFO", name.upper()).values()
    words = name.upper().split("|")
    words += ["1"] * (abs(facts["arity"]) - len(words))
    if facts["first_key_pos"]:
        words[facts["first_key_pos"]] = "jobq:{low}:x"
    if name == "zunionstore":
        words[3] = "jobq:{low}:x"
    if name == "zrangestore":
        words[2] = "jobq:{low}:x"
    if name == "lmove":
        words[2:] = ["jobq:{low}:x", "LEFT", "RIGHT"]
    return words


def writes(redis, name):
    [facts] = redis.execute_command("COMMAND", "INFO", name.upper()).values()
    return "write" in {getattr(flag, "decode", lambda flag=flag: flag)() for flag in facts["flags"]}


@pytest.mark.parametrize(("role", "name"), INSIDE)
def test_role_may_send_all_that_a_script_of_its_part_sends(redis, allowed, role, name):
    script = load("queue", name)
    verb, function = functions.called(script)
    keys = [f"jobq:{{low}}:{key}" for key in script.keys]
    assert allowed(role, verb, function, len(keys), *keys)
    for command in rights.commands(script):
        # A reading script never reaches a write command, though a fragment of its text has one.
        may = not (rights.ROLES[role].reads and writes(redis, command))
        assert allowed(role, *call(redis, command)) == may, command


@pytest.mark.parametrize(("role", "name"), FAR)
def test_role_may_not_send_all_of_a_script_beyond_its_part(redis, allowed, role, name):
    script = load("queue", name)
    verb, function = functions.called(script)
    keys = [f"jobq:{{low}}:{key}" for key in script.keys]
    refused = not allowed(role, verb, function, len(keys), *keys)
    assert refused or any(not allowed(role, *call(redis, one)) for one in rights.commands(script))


def test_workers_write_the_records_of_django_tasks_and_producers_read_them(allowed):
    key = "jobq:{low}:django:m"
    for command in (
        ["HSET", key, "1", "x"],
        ["PEXPIRE", key, "1"],
        ["HGETALL", key],
        ["HKEYS", key],
    ):
        assert allowed("worker", *command)
    assert allowed("producer", "HGETALL", key)
    for other in ("jobq:{low}:messages", "jobq:{low}:tokens", "jobq:{low}", "other:{low}:django:m"):
        assert not allowed("producer", "HGETALL", other)


def test_worker_ends_its_waits_and_lists_functions_and_nobody_else_does(allowed):
    for role in rights.ROLES:
        for command in (("CLIENT", "UNBLOCK", "1"), ("FUNCTION", "LIST")):
            assert allowed(role, *command) == (role == "worker"), role


@pytest.mark.parametrize("role", rights.ROLES)
def test_no_role_reaches_a_script_of_another_namespace(allowed, role):
    for name in SCRIPTS:
        script = load("queue", name)
        keys = [f"other:{{low}}:{key}" for key in script.keys]
        assert not allowed(role, functions.called(script)[0], "f", len(keys), *keys), name


def test_deployer_may_call_no_script(allowed):
    for name in SCRIPTS:
        script = load("queue", name)
        keys = [f"jobq:{{low}}:{key}" for key in script.keys]
        assert not allowed(rights.DEPLOYER, functions.called(script)[0], "f", len(keys), *keys)


@pytest.mark.parametrize("name", SCRIPTS)
def test_dashboard_changes_nothing_by_any_script(users, server, redis, name):
    url = server.url.replace("unix://", "unix://jobq_dashboard:x@")
    looks = connect(settings=ServerSettings(url=url, functions=True, patience_s=10))
    script = load("queue", name)
    function = functions.called(script)[1]
    keys = [f"jobq:{{low}}:{key}" for key in script.keys]
    for verb in ("FCALL", "FCALL_RO"):
        try:
            looks.command(verb, function, len(keys), *keys, *["1"] * 12, routed_by=keys[0])
        except JobqError as error:
            refusal = str(error)
            assert name in rights.ROLES["dashboard"].scripts or any(
                word in refusal for word in ("permission", "write flag")
            ), refusal
        else:
            assert name in rights.ROLES["dashboard"].scripts
    assert redis.keys("*") == []
    looks.close()
