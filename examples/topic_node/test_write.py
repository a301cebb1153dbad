"""Test the records that the Node reader expects."""

from __future__ import annotations

from typing import Any

import pytest

from examples.topic_node import write
from jobq.topics import Topic


def test_orders_are_appended_under_their_ids(jobq: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write.main()
    assert capsys.readouterr().out == "appended [1, 2, 3]\n"
    topic = Topic("orders")
    messages = [topic.get(index) for index in (1, 2, 3)]
    assert [message.key for message in messages] == ["1", "2", "1"]
    assert [message.headers for message in messages] == [{"from": "python"}] * 3
    assert "café" in messages[1].content.decode("unicode_escape")
