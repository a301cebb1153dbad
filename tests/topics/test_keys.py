"""Every key that a script of a topic touches is declared, in one slot; work per call doesn't grow with the topic."""

from __future__ import annotations

import pytest

from jobq.client.scripts import Script, folder
from jobq.topics import Record, Topic, keys
from tests.confined import Confined


@pytest.fixture
def confined(server, redis):
    client = Confined(server.url, redis)
    yield client
    client.close()


def life_of_a_topic(topic, at):
    """Every verb, and every branch that writes a key of its own."""
    topic.set_limits(max_age=60, compact=True)
    for i in range(30):
        topic.append_many([Record(b"x" * 4_000, str(j % 7)) for j in range(100)], now=at(i * 3_000))
    topic.set_limits(compact=False, max_bytes=100_000)
    topic.append(b"x", now=at(100_000))
    topic.compact()
    reader, other = topic.reader("g", lease=1), topic.reader("g", commit="auto")
    group = topic.group("g")
    reader.poll(10, now=at(100_000))
    other.poll(5, now=at(200_000))
    other.extend()
    other.poll(5, now=at(200_000))
    other.commit()
    group.pause()
    group.resume()
    group.lag()
    group.seek("earliest")
    list(topic.read(out_of_range="earliest"))
    topic.find(0)
    topic.describe()
    topic.trim(before=2_990)
    group.unsubscribe()


def test_scripts_touch_only_the_keys_they_declare(confined, at):
    life_of_a_topic(Topic("orders", confined), at)
    assert all("{orders}" in key for key in confined.declared)
    scripts = {path.stem for path in (folder() / "topic").glob("[a-z]*.lua")}
    assert {name for name in scripts - confined.ran if not name.startswith("redismq")} == set()


@pytest.mark.parametrize("path", sorted((folder() / "topic").glob("*.lua")), ids=lambda p: p.stem)
def test_script_builds_no_key_names_of_its_own(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        for call in line.split("redis.call(")[1:]:
            parts = [part.strip() for part in call.split(",")]
            assert ".." not in parts[1] if len(parts) > 1 else True, line


def test_every_key_is_described():
    bound = {
        key
        for path in (folder() / "topic").glob("[a-z]*.lua")
        if not path.stem.startswith("redismq")
        for key in Script(path).keys
    }
    described = keys.__doc__ or ""
    for name in bound - {"last_call"}:
        assert f"\n{name}" in described


@pytest.fixture(params=[100, 50_000])
def long(request, topic, at):
    """A topic of so many messages, half of them read, and nearly compacted."""
    topic.append_many((Record(b"x", str(i % 100)) for i in range(request.param // 2)), now=at(0))
    topic.compact()
    topic.append_many((b"x" for _ in range(request.param // 2)), now=at(1))
    topic.reader("g", start=request.param // 2).poll(10, now=at(1))
    return topic


# verb -> (commands at most for n messages, the call)
VERBS = {
    "append": (lambda n: 12 + n, lambda t, n, now: t.append_many([b"x"] * n, now=now)),
    "poll": (lambda n: 20, lambda t, n, now: t.reader("g").poll(n, now=now)),
    "take over": (lambda n: 30, lambda t, n, now: t.reader("g").poll(n, now=now + 10**6)),
    "lag": (lambda n: 10, lambda t, n, now: t.group("g").lag(now=now)),
    "find": (lambda n: 50, lambda t, n, now: t.find(now / 1000)),
    "describe": (lambda n: 12, lambda t, n, now: t.describe()),
    "seek": (lambda n: 60, lambda t, n, now: t.group("g").seek(10)),
    "compact": (
        lambda n: 10 + 4 * n,
        lambda t, n, now: t._binding.run("compact", {"now": now, "begin": 1, "limit": n}),
    ),
    "trim": (lambda n: 130, lambda t, n, now: t._binding.run("trim", {"now": now, "before": n})),
}


@pytest.mark.one_server
@pytest.mark.parametrize("verb", VERBS)
def test_commands_of_a_call_do_not_grow_with_the_topic(long, at, commands, verb):
    bound, call = VERBS[verb]
    for n in (1, 10, 100):
        # SADD of the topic's name, once per process, is done.
        assert commands(lambda n=n: call(long, n, at(1))) <= bound(n)
