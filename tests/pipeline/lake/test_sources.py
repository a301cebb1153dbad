"""Several servers in one lake: queues and topics of the same name stay apart."""

from __future__ import annotations

from collections import Counter

import pytest
from deltalake import CommitProperties, Transaction

from jobq import runtime
from jobq.errors import ConfigError, LakeError
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import inspection, rollup
from jobq.pipeline.lake.commit import adopt, state_of
from jobq.pipeline.lake.ingest import Ingest, IngestOptions, one_round
from jobq.pipeline.lake.tables import EVENTS, parted, sourced
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.topics import Topic
from tests.pipeline.lake.conftest import DAY, mids, rows


def round_of(lake, client, source: str):
    work = Ingest(lake, client, Engine("local"), IngestOptions(source=source))
    return one_round(work, lambda batch: None, lambda: False)


def bury(queue: Queue, mid: str) -> None:
    queue.enqueue(b"content", mid=mid)
    [message] = queue.dequeue(1).messages
    queue.finish([Ending(mid=mid, token=message.token, outcome="dead", reason="no")])


def test_equal_entries_of_two_servers_are_rows_of_two_queues(
    lake, valkey_client, valkey_redis, write
):
    for source in ("eu", ""):
        # Emptied and filled again, the server counts as a new server with the same ids.
        valkey_redis.flushall()
        runtime.listed.clear()
        write("low", 3)
        write("other", 1)
        valkey_client.command(
            "XADD", offsets.events_key("jobq", "low"), "1800000000000-0", "1", "bad"
        )
        Topic("orders", valkey_client).append(b"v")
        bury(Queue("high", valkey_client), "same")
        found = round_of(lake, valkey_client, source)
        assert (found.events, found.topics, found.dead, found.quarantined) == (5, 1, 1, 1)
        assert (found.lost, found.remade) == ({}, ())
        assert round_of(lake, valkey_client, source).is_empty
        behind = inspection.backlog(lake, valkey_client, source=source)
        assert {one.queue: one.backlog for one in behind} == {"low": 0, "other": 0, "high": 0}
    assert mids(lake, "{eu}low") == mids(lake, "low") == Counter(["m1", "m2", "m3"])
    assert {row["topic"] for row in rows(lake, "topics")} == {"orders", "{eu}orders"}
    assert {row["queue"] for row in rows(lake, "dead")} == {"high", "{eu}high"}
    assert {row["queue"] for row in rows(lake, "quarantine")} == {"low", "{eu}low"}
    assert [one for one in inspection.check(lake) if one.level != "ok"] == []


def test_offsets_of_other_sources_are_counted_by_their_next_ingest(lake, valkey_client, write):
    write("low", 5)
    round_of(lake, valkey_client, "eu")
    round_of(lake, valkey_client, "us")
    write("low", 2, first=6)
    delta = lake.made(EVENTS.name)
    known = state_of(lake, EVENTS)
    # As if another program had rewritten the log: the batch's number is there, its offsets aren't.
    properties = CommitProperties(app_transactions=[Transaction(EVENTS.app, 7)])
    delta.create_write_transaction(
        [], "append", delta.schema(), ["dt"], commit_properties=properties
    )
    with pytest.raises(LakeError, match="--adopt"):
        round_of(lake, valkey_client, "us")
    adopt(lake, valkey_client, "eu")
    places = state_of(lake, EVENTS).places
    assert places["{eu}low"] == known.places["{eu}low"]
    assert places["{us}low"] == known.places["{us}low"]._replace(n=-1)
    for source in ("us", "eu"):
        found = round_of(lake, valkey_client, source)
        assert (found.events, found.lost) == (2, {})
    assert mids(lake) == Counter({f"m{number}": 2 for number in range(1, 8)})


def test_job_runs_of_two_servers_stay_apart_when_they_are_refreshed(
    spark, lake, valkey_client, valkey_redis, write
):
    for source, again in (("eu", 2), ("", 1)):
        valkey_redis.flushall()
        runtime.listed.clear()
        # Both have the same mids at the same times; one has a mid more again, in a new message.
        write("low", 3)
        round_of(lake, valkey_client, source)
        write("low", again, at=DAY + 1_000)
        round_of(lake, valkey_client, source)
        rollup.refresh(lake, spark)
    found = Counter((row["queue"], row["mid"], row["done"]) for row in rows(lake, "job_runs"))
    assert found == {
        ("{eu}low", "m1", 1): 2, ("{eu}low", "m2", 1): 2, ("{eu}low", "m3", 1): 1,
        ("low", "m1", 1): 2, ("low", "m2", 1): 1, ("low", "m3", 1): 1,
    }  # fmt: skip
    hours = {row["queue"]: row["done"] for row in rows(lake, "rollup_hourly")}
    assert hours == {"{eu}low": 5, "low": 4}


@pytest.mark.parametrize("source", ["a{b", "a}b", "a b", "x" * 129, "\n"])
def test_names_that_no_source_can_have_are_refused(lake, valkey_client, source):
    with pytest.raises(ConfigError, match=r"source .* can't be used"):
        Ingest(lake, valkey_client, Engine("local"), IngestOptions(source=source))


@pytest.mark.parametrize(
    ("source", "name"), [("eu", "mails"), ("", "mails"), ("a/b:c", "d/e"), ("eu", "ä@1")]
)
def test_source_and_name_are_found_again_in_the_name_in_the_lake(source, name):
    assert parted(sourced(source, name)) == (source, name)
