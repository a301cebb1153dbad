"""A worker's entry in Sidekiq's lists: what runs is shown for as long as it does, without a gap."""

from __future__ import annotations

import json

import pytest

from jobq.errors import UnavailableError
from jobq.protocols.ruby.dashboard_entries import SidekiqEntry
from jobq.protocols.ruby.retries import RubyJobCounts
from tests.protocols.ruby.conftest import PLACE


@pytest.fixture
def presence(client, fed_worker):
    return SidekiqEntry(client, [PLACE], fed_worker, RubyJobCounts())


@pytest.fixture
def shown(redis, presence):
    """shown(): the jids of what is listed as running, under both names that versions of Sidekiq look at."""

    def listed():
        found = [redis.hvals(f"{presence.identity}:{name}") for name in ("work", "workers")]
        return [sorted(json.loads(json.loads(job)["payload"])["jid"] for job in at) for at in found]

    return listed


def test_running_job_is_shown_at_every_moment_until_it_ends(
    client, redis, presence, fed_worker, shown, monkeypatch
):
    fed_worker.jobs = [(1, "default", "a", 5), (2, "default", "b", 5)]
    presence.beat(lambda *_: None)
    assert shown() == [["a", "b"], ["a", "b"]]
    real, looks = client.command, []

    def command(*words):
        reply = real(*words)
        looks.append(shown())
        return reply

    monkeypatch.setattr(client, "command", command)
    fed_worker.jobs = [(1, "default", "a", 9), (2, "default", "c", 1)]
    presence.beat(lambda *_: None)
    assert all("a" in jids for look in looks for jids in look)
    assert shown() == [["a", "c"], ["a", "c"]]
    assert 0 < redis.ttl(f"{presence.identity}:work") <= 60


def test_nothing_is_shown_once_nothing_runs(redis, presence, fed_worker, shown):
    fed_worker.jobs = [(1, "default", "a", 5)]
    presence.beat(lambda *_: None)
    fed_worker.jobs = []
    presence.beat(lambda *_: None)
    assert shown() == [[], []]
    presence.leave()
    assert not redis.keys(f"{presence.identity}*")


def test_job_whose_entry_could_not_be_taken_out_goes_with_the_next_beat(
    client, presence, fed_worker, shown, monkeypatch
):
    fed_worker.jobs = [(1, "default", "a", 5)]
    presence.beat(lambda *_: None)
    real = client.command

    def refused(*words):
        if words[0] == "HDEL":
            raise UnavailableError("away")
        return real(*words)

    fed_worker.jobs = [(1, "default", "b", 5)]
    with monkeypatch.context() as patched:
        patched.setattr(client, "command", refused)
        with pytest.raises(UnavailableError):
            presence.beat(lambda *_: None)
    fed_worker.jobs = [(1, "default", "c", 5)]
    presence.beat(lambda *_: None)
    assert shown() == [["c"], ["c"]]
