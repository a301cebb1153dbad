"""Valid mids, for producers that don't use Queue: UTF-8 without control characters."""

from __future__ import annotations

import pytest

from jobq.client.numbered_calls import Caller
from jobq.errors import ScriptError
from jobq.queue.queue import enqueue_values

GOOD = ["a", "é", "日本", "🎉", "\u0800", "\ud7ff", "\ue000", "\U0010ffff", "x" * 128, "é🎉a" * 20]
BAD = [
    b"\xff", b"a\x80", b"\xc3", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80",
    b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
    b"\xe2\x82", b"\xc3\xe2\x82\xac\xa9", b"a\nb", b"\x00", b"\x7f", b"",
]  # fmt: skip


def enqueue(queue, mid):
    """Enqueue like a producer in another language: bytes."""
    return queue.scripts["enqueue"].call(Caller(), enqueue_values(), [mid, b"v"])


@pytest.mark.parametrize("mid", GOOD)
def test_text_is_accepted_and_handed_out(queue, mid):
    assert enqueue(queue, mid.encode()) == [b"added", b""]
    assert [message.mid for message in queue.dequeue().messages] == [mid]


@pytest.mark.parametrize("mid", BAD, ids=repr)
def test_bytes_that_no_client_could_read_are_refused(queue, mid):
    with pytest.raises(ScriptError, match="a mid must be"):
        enqueue(queue, mid)
    assert queue.admin.counts().messages == 0
