"""The example in Node reads what Python wrote, and Python what Node wrote."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from jobq.client.functions import area_library, load_library
from jobq.client.runtime import runtime
from jobq.topics import Topic

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.needs("node")
def test_node_reads_what_python_wrote_and_answers(run, server, client, redis):
    runtime.listed_topics.clear()
    load_library(client, area_library("topic"))
    writing = run("examples/topic_node/write.py")
    assert writing.communicate(timeout=300)[0] == "appended [1, 2, 3]\n"

    def node():
        return subprocess.run(
            ["node", "examples/topic_node/read.mjs"], cwd=ROOT, env={**os.environ, "JOBQ_URL": server.url},
            capture_output=True, text=True, timeout=300, check=True,
        ).stdout.splitlines()  # fmt: skip

    assert node() == [
        "1 1 tea python", "2 2 café python", "3 1 coffee python", "1 to 3: ok", "appended 4",
    ]  # fmt: skip
    topic = Topic("orders", client)
    answer = topic.get(4)
    assert (answer.content, answer.key) == (b"thank you, says node", "answer")
    assert topic.group("node").lag().messages == 1
    topic.group("node").seek(4)
    topic.append(b'{"item": "x"}', key="5", headers={"from": "python"})
    topic.trim(before=5)
    assert node()[0] == "5 5 x python"
    redis.function_flush()
