"""Topics on a Cluster, for users who may only call functions, and on a server that restarts."""

from __future__ import annotations

import pytest

from jobq.client.connection import connect
from jobq.client.runtime import runtime
from jobq.config import ServerSettings
from jobq.errors import ConfigError, ScriptError
from jobq.queue.queue import Queue
from jobq.topics import Record, RedismqTopic, Topic, topic_names
from tests.client.deployments import Spread
from tests.conftest import answering, binary, start
from tests.security.logins import logins


@pytest.fixture(scope="module")
def spread(server, tmp_path_factory):
    deployment = Spread(binary(server.kind), tmp_path_factory.mktemp("cluster"))
    yield deployment
    deployment.close()


@pytest.fixture
def cluster(spread):
    client = connect(settings=ServerSettings(url=spread.url, patience_s=30))
    yield client
    client.close()


def life(topic):
    """Every verb once."""
    topic.append_many([b"1", Record(b"2", "k"), Record(b"3", "k")])
    with topic.reader("g", commit="auto") as reader:
        assert [m.index for m in reader.poll(2).messages] == [1, 2]
        assert [m.index for m in reader.poll(block=60).messages] == [3]
    assert topic.group("g").lag().messages == 0
    topic.group("g").seek("earliest")
    topic.compact()
    assert [m.index for m in topic.read()] == [1, 3]
    assert topic.describe().groups == ["g"]


def test_topics_of_a_cluster_live_on_their_nodes(cluster, spread):
    names = [f"orders{number}" for number in range(9)]
    for name in names:
        life(Topic(name, cluster))
    assert set(names) <= set(topic_names(cluster))
    assert all(node.redis.dbsize() > 0 for node in spread.nodes)
    for name in names:
        Topic(name, cluster).delete()


def test_redismq_layout_on_a_cluster_needs_a_hash_tag(cluster, spread):
    with pytest.raises(ConfigError, match=r"name it '\{foo\}'"):
        RedismqTopic("foo", cluster)
    topic = RedismqTopic("{foo}", cluster)
    assert topic.append_many([b"1", b"2"]) == [1, 2]
    assert [m.content for m in topic.reader("g").poll().messages] == [b"1", b"2"]
    assert len(list(topic.read())) == 2


@pytest.fixture
def user(server, redis, client, capsys):
    """user("orders"): a client of a user made by `jobq acl topic` for these topics; functions are there."""
    runtime.listed_topics.clear()
    with logins(server, redis, client, capsys) as login:
        yield lambda *topics: login("topic", *(["--queues", ",".join(topics)] if topics else []))


def test_user_with_the_rights_of_topics_alone_has_topics(user, redis):
    redis.execute_command("ACL", "LOG", "RESET")
    life(Topic("orders", user()))
    topic = Topic("prices", user())
    topic.set_limits(max_age=3600)
    topic.append(b"1")
    topic.trim(before=2)
    assert topic.reader("g").poll(block=0.05).messages == []
    topic.group("g").pause()
    topic.group("g").unsubscribe()
    topic.delete()
    assert topic_names(user()) == ["orders"]
    assert not redis.execute_command("ACL", "LOG")


def test_user_of_one_topic_reaches_no_other_and_no_queue(user, redis):
    shop = user("orders")
    Topic("orders", shop).append(b"x")
    for call in (
        lambda: Topic("prices", shop).append(b"x"),
        lambda: Queue("orders", shop).enqueue(b"{}"),
        lambda: shop.command("HGETALL", "jobq:{orders}:messages"),
        lambda: shop.command("FLUSHALL", routed_by=""),
    ):
        with pytest.raises(ScriptError, match=r"permission|No permissions"):
            call()


def test_topic_is_there_after_a_restart(server, tmp_path):
    def run():
        options = ("--port", "0", "--unixsocket", f"{tmp_path}/s", "--appendonly", "yes")
        process = start(binary(server.kind), tmp_path, *options, "--appendfsync", "always")
        answering(process, tmp_path, unix_socket_path=f"{tmp_path}/s")
        return process

    client = connect(settings=ServerSettings(url=f"unix://{tmp_path}/s"))
    topic = Topic("orders", client)
    process = run()
    try:
        topic.append_many([b"1", b"2", b"3"], durability="disk")
        reader = topic.reader("g")
        batch = reader.poll(2)
        process.kill()
        process.wait()
        process = run()
        assert reader.commit(batch) == 2
        assert [m.content for m in reader.poll().messages] == [b"3"]
        assert topic.append(b"4") == 4
    finally:
        process.kill()
        process.wait()
        client.close()
