"""The pages on topics say what is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from jobq.client.functions import area_library, load_library
from jobq.client.runtime import runtime
from jobq.topics import Topic, keys

DOCS = Path(__file__).resolve().parents[2] / "docs"
CALL = re.compile(r"(FCALL .*?)\n(?:-> (\w+)|(?=FCALL))", re.DOTALL)


@pytest.fixture
def library_loaded(client, redis):
    load_library(client, area_library("topic"))
    yield
    redis.function_flush()


def test_function_calls_of_the_wire_page_do_what_it_says(client, redis, library_loaded):
    runtime.listed_topics.clear()
    text = (DOCS / "reference" / "wire.md").read_text()
    blocks = [b for b in re.findall(r"```text\n(.*?)```", text, re.DOTALL) if "FCALL topic_" in b]
    replies = []
    for block in blocks:
        for call, told in CALL.findall(block):
            words = shlex.split(call)
            replies.append((words[1], told, redis.execute_command(*words)))
    assert [name for name, _, _ in replies] == [
        "topic_append", "topic_subscribe", "topic_poll", "topic_commit",
    ]  # fmt: skip
    assert all(reply[0] == (told or "made").encode() for _, told, reply in replies)
    entries = replies[2][2][9]
    assert [fields for _, fields in entries] == [
        [b"m", b"hello"],
        [b"m", b"world", b"k", b"greeting"],
    ]
    assert replies[3][2] == [b"ok", 2]
    topic = Topic("orders", client)
    assert [m.key for m in topic.read()] == [None, "greeting"]
    plain = redis.execute_command("XRANGE", "jobq:{orders}:topic:log", 1, 2, "COUNT", 500)
    assert len(plain) == 2


def test_wire_page_names_every_key_of_a_topic():
    text = (DOCS / "reference" / "wire.md").read_text().partition("## Topics")[2]
    named = set(re.findall(r"`([\w]+(?::<\w+>)?)`", text))
    listed = re.findall(r"^(\w+(?::<\w+>)?)  +\w", keys.__doc__ or "", re.MULTILINE)
    assert len(listed) == 12
    assert {name.replace("<name>", "<group>") for name in listed} <= named
