"""Clients against servers that stop, restart, fill up and refuse."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import threading

import pytest
from redis.exceptions import BusyLoadingError, ResponseError

from jobq.cli.session import Session
from jobq.client.connection import connect, default_client, set_default_client
from jobq.client.numbered_calls import Caller, gave_up
from jobq.client.runtime import runtime
from jobq.client.scripts import load
from jobq.client.waiter import first_item
from jobq.config import ServerSettings, settings_from_env
from jobq.errors import ConfigError, ScriptError, ServerFullError, UnavailableError
from jobq.queue.queue import Queue, enqueue_values


@pytest.fixture
def make(server, redis):
    """make(**settings): a client of the test's server, closed at the end."""
    made = []

    def client(**settings):
        made.append(connect(settings=ServerSettings(**{"url": server.url, **settings})))
        return made[-1]

    yield client
    for one in made:
        one.close()


def test_command_gives_the_raw_reply(client):
    assert client.command("PING") == b"PONG"
    assert client.command("HSET", "h", "a", 1) == 1
    assert client.command("HGETALL", "h") == [b"a", b"1"]


@pytest.mark.filterwarnings("ignore:Call to:DeprecationWarning")  # of lib_name, by redis-py
@pytest.mark.parametrize(("more", "name"), [("", b"redis-py"), ("lib_name=mine", b"mine")])
def test_connection_names_its_library_without_reading_what_is_installed(
    make, server, monkeypatch, more, name
):
    def read(distribution):
        raise AssertionError(f"the files of {distribution} were read")

    if not more:
        monkeypatch.setattr("importlib.metadata.version", read)
    url = server.url + ("&" if "?" in server.url else "?") + more
    told = make(url=url.rstrip("?")).command("CLIENT", "INFO")
    # Servers before 7.2 don't keep it.
    assert b"lib-name=" not in told or b"lib-name=" + name in told


def test_script_is_loaded_when_the_server_does_not_know_it(client, redis):
    redis.script_flush()
    queue = Queue("low", client)
    assert queue.enqueue(b"v").action == "added"
    redis.script_flush()
    assert len(queue.dequeue().messages) == 1


def test_error_of_a_command_is_a_script_error(client):
    client.command("SET", "k", "v")
    with pytest.raises(ScriptError, match="WRONGTYPE"):
        client.command("HGETALL", "k")
    assert client.command("GET", "k") == b"v"


def test_wrong_password_is_a_setting_and_not_tried_for_long(make, redis):
    redis.config_set("requirepass", "right")
    try:
        wrong = make(url=make().url.replace("unix://", "unix://:wrong@"), patience_s=60)
        with pytest.raises(ConfigError, match="user and password") as refused:
            wrong.command("PING")
        assert "wrong@" not in str(refused.value)
    finally:
        redis.execute_command("AUTH", "right")
        redis.config_set("requirepass", "")


def test_unavailable_is_raised_once_patience_ends(tmp_path):
    client = connect(settings=ServerSettings(url=f"unix://{tmp_path}/none", patience_s=0.05))
    with pytest.raises(
        UnavailableError,
        match=r"no connection to .*nothing was sent\. Check the address in JOBQ_URL.*JOBQ_PATIENCE",
    ):
        client.command("PING")
    with pytest.raises(UnavailableError):
        client.open_connection("k")


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("error", "unknown", "says"),
    [
        (BusyLoadingError("loading"), False, "didn't accept the call .*nothing was changed"),
        (ResponseError("READONLY"), False, "didn't accept the call .*nothing was changed"),
        (OSError("reset"), True, "no answer from .* took effect is unknown"),
        (ssl.SSLCertVerificationError("self-signed"), False, "certificate .* ssl_ca_certs"),
    ],
)
def test_error_says_how_far_the_call_came(client, error, unknown, says):
    assert re.search(says, str(gave_up(error, client, deadline=0, unknown=unknown)))


def test_call_outlives_every_connection_being_cut(client, redis):
    queue = Queue("low", client)
    for number in range(20):
        redis.client_kill_filter(_type="normal", skipme=True)
        assert queue.enqueue(b"v", mid=f"m{number}").action == "added"
    assert queue.admin.counts().messages == 20


def test_call_waits_for_a_server_that_is_paused(make, server):
    client = make(socket_timeout_s=0.05, patience_s=20)
    queue = Queue("low", client)
    queue.enqueue(b"v", mid="a")
    server.process.send_signal(signal.SIGSTOP)
    thread = threading.Timer(0.3, server.process.send_signal, (signal.SIGCONT,))
    thread.start()
    try:
        assert queue.enqueue(b"v", mid="b").action == "added"
    finally:
        thread.join()
    assert queue.admin.counts().messages == 2


def test_call_ends_with_its_patience_when_the_server_is_silent():
    """No try may begin after that, nor go on."""
    tries = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        client = connect(settings=ServerSettings(url=url, socket_timeout_s=0.2, patience_s=0.3))
        with pytest.raises(
            UnavailableError,
            match=r"within 0\.3 s .*nothing was sent\. Check the address in JOBQ_URL",
        ):
            client.command("PING")
        # Nobody accepted them: the system connects them all the same.
        with contextlib.suppress(BlockingIOError):
            while True:
                tries.append(silent.accept())
        for connection, _ in tries:
            connection.close()
    # The first has 0.2 s, the second what is left.
    assert 1 <= len(tries) <= 2


def test_busy_server_is_waited_for(make, redis):
    client = make(patience_s=20)
    redis.config_set("busy-reply-threshold", 10)
    spin = "local t = redis.call('TIME') repeat local n = redis.call('TIME') until n[1] - t[1] > 1"
    thread = threading.Thread(target=redis.eval, args=(spin, 0))
    thread.start()
    assert Queue("low", client).enqueue(b"v").action == "added"
    thread.join()
    redis.config_set("busy-reply-threshold", 5000)


def test_threads_share_a_client(client):
    queue = Queue("low", client)
    failed = []

    def produce(name):
        try:
            for number in range(100):
                assert queue.enqueue(b"v", mid=f"{name}-{number}").action == "added"
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=produce, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert queue.admin.counts().messages == 600


def test_forked_child_opens_connections_of_its_own(client, redis):
    queue = Queue("low", client)
    queue.enqueue(b"v", mid="parent")
    before = redis.info("stats")["total_connections_received"]
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if queue.enqueue(b"v", mid="child").action == "added" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert redis.info("stats")["total_connections_received"] == before + 1
    assert queue.enqueue(b"v", mid="parent2").action == "added"
    assert queue.admin.counts().messages == 3


def test_wait_for_an_item_lasts_longer_than_the_socket_timeout(make, redis):
    client = make(socket_timeout_s=0.05, patience_s=60)
    thread = threading.Timer(0.3, redis.lpush, ("results", "1"))
    thread.start()
    assert first_item(client, "results", 60) == b"1"
    thread.join()


def test_closed_connection_has_no_file(client):
    connection = client.open_connection("wake")
    assert client.fileno(connection) > 0
    connection.disconnect()
    with pytest.raises(UnavailableError, match="closed"):
        client.fileno(connection)


def test_repr_hides_the_password():
    client = connect(settings=ServerSettings(url="redis://:secret@h/0"))
    assert "secret" not in repr(client)


def test_namespace_separates_queues(make, redis):
    Queue("low", make(namespace="one")).enqueue(b"v")
    assert Queue("low", make(namespace="two")).admin.counts().messages == 0
    assert redis.exists("one:{low}:messages")
    with pytest.raises(ConfigError, match="namespace"):
        make(namespace="a{b")


def test_programs_wait_2_s_by_default_and_commands_10():
    assert settings_from_env({}).patience_s == 2
    assert settings_from_env({}).socket_timeout_s <= 2.5
    assert ServerSettings().patience_s == 2
    assert Session(None, None, False).settings.patience_s == 10
    assert settings_from_env({"JOBQ_PATIENCE": "3s"}, patience_s=10).patience_s == 3


def test_settings_come_from_the_environment():
    env = {"REDIS_URL": "redis://r", "JOBQ_NAMESPACE": "n", "JOBQ_PATIENCE": "3s"}
    settings = settings_from_env(env)
    assert (settings.url, settings.namespace, settings.patience_s) == ("redis://r", "n", 3.0)
    assert settings.socket_timeout_s == 3.0
    assert settings_from_env({**env, "JOBQ_URL": "redis://j"}).url == "redis://j"


def test_default_client_is_made_once_from_the_environment(server, redis, monkeypatch):
    monkeypatch.setenv("JOBQ_URL", server.url)
    set_default_client(None)
    made = default_client()
    assert made is default_client()
    assert made.url == server.url
    assert Queue("low").client is made
    made.close()
    set_default_client(None)


def test_renewed_runtime_is_that_of_a_new_process(client):
    before = dict(vars(runtime))
    try:
        set_default_client(client)
        runtime.renew()
        assert runtime.default is None and client not in runtime.clients
        assert runtime.start_server is before["start_server"]
    finally:
        vars(runtime).update(before)


def test_scripts_of_the_engine_run_on_what_the_server_has(client):
    reply = client.run(load("queue", "counts"), Queue("low", client).scripts["counts"].keys, ())
    assert reply[0] == 0


@pytest.fixture
def missing(redis):
    """A server that refuses writes, since a replica is missing."""
    redis.config_set("min-replicas-to-write", 1)
    yield redis
    redis.config_set("min-replicas-to-write", 0)


def test_refused_write_is_tried_again_and_then_told_as_one_that_changed_nothing(missing, make):
    queue = Queue("low", make(patience_s=2))
    with pytest.raises(ServerFullError, match=r"nothing was changed: NOREPLICAS"):
        queue.enqueue(b"v", mid="m")
    assert queue.status("m").word == "nil"


def test_refused_write_is_accepted_once_it_may_be(missing, make):
    queue = Queue("low", make(patience_s=60))
    mended = threading.Timer(0.2, missing.config_set, ("min-replicas-to-write", 0))
    mended.start()
    assert queue.enqueue(b"v").action == "added"
    mended.join()


def test_refused_write_counts_as_not_sent_when_its_script_had_to_be_brought(client, missing):
    """Else a call that the server refuses for long, after a restart say, would be given up as unknown."""
    queue = Queue("low", client)
    queue.listed_until = 2**62
    missing.script_flush()
    state = queue.scripts["enqueue"].numbered(Caller(), enqueue_values(), ["m", b"v"])
    client.should_give_up = lambda: True
    with pytest.raises(ServerFullError):
        client.perform(queue.wake_key, state)
    assert not state.arrived


def test_write_refused_after_a_lost_reply_is_unknown(missing, make):
    client = make(patience_s=2)
    queue = Queue("low", client)
    missing.config_set("min-replicas-to-write", 0)
    queue.enqueue(b"v", mid="first")
    missing.client_kill_filter(_type="normal", skipme=True)
    missing.config_set("min-replicas-to-write", 1)
    with pytest.raises(UnavailableError, match="unknown"):
        queue.enqueue(b"v", mid="m")


@pytest.mark.parametrize("forbidden", ["-script", "-evalsha"])
def test_user_who_may_not_call_scripts_is_told_of_functions(make, server, redis, forbidden):
    redis.execute_command("ACL", "SETUSER", "shy", "on", ">p", "~*", "&*", "+@all", forbidden)
    redis.script_flush()
    try:
        client = make(url=server.url.replace("unix://", "unix://shy:p@"))
        with pytest.raises(ScriptError, match="JOBQ_FUNCTIONS=1"):
            Queue("low", client).enqueue(b"v")
    finally:
        redis.execute_command("ACL", "DELUSER", "shy")
