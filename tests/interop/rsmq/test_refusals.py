"""Whatever is given for a name, an id or a number: it is accepted or refused as Node's client does it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.rsmq.conftest import Peer, Refused

#: What is checked here is the same on each server.
pytestmark = pytest.mark.one_server

ID = "hochb5vvsh0123456789abcdefghijkl"
NAMES: list[Any] = [
    "q", "n", "a b", "a.b", "a:b", "q\n", " q", "q ", "é", "x" * 161, "", None, 0, -0.0, False, True, 5, 5.0, 5.5,
    1e-7, 1e-6, 1.5e-7, 1e21, 2**53 + 1, 10**21, -3, -0.5, [], ["q"], [["q"]], ["q", "n"], [None], {}, {"q": 1},
    "\u2028", "\ufeff", "a\x00b", "constructor", "__proto__",
]  # fmt: skip
IDS: list[Any] = [
    ID, ID[:-1], ID + "x", ID + "\n", ":" * 32, "a b", " " + ID[1:], "é" * 32, "", None, 0, False, True, 5, [ID], [],
    {}, "_" * 32,
]  # fmt: skip
NUMBERS: list[Any] = [
    None, 0, 1, "1", " 7", "7x", "x", "", "+5", "-0", -0.0, -0.5, -1, 1.9, 0.00001, 1e-7, 9_999_999, 10_000_000, 1e21,
    10**21, 10**25, "0x10", "1e3", True, False, [], [5], [5, 6], ["7"], {}, "\ufeff5", "\x1c5", "\x855", "\u0665",
    "\u00a05", "9" * 400, 1024, "1024", 65_536, 65_537, -2,
]  # fmt: skip
NAMED = ("createQueue", "deleteQueue", "getQueueAttributes", "receiveMessage", "popMessage")
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "names": [(method, {"qname": name}) for method in NAMED for name in NAMES],
    "names of a send": [
        ("sendMessage", {"qname": name, "message": "x", "delay": delay})
        for name in NAMES for delay in (None, -1)
    ],
    "names of new settings": [
        ("setQueueAttributes", {"qname": name, "vt": vt}) for name in NAMES for vt in (5, -1, None)
    ],
    "ids of a deletion": [
        ("deleteMessage", {"qname": name, "id": id}) for name in NAMES for id in IDS
    ],
    "ids of a visibility": [
        ("changeMessageVisibility", {"qname": name, "id": id, "vt": vt})
        for name in NAMES for id in IDS for vt in (5, -1)
    ],
    "numbers of a creation": [
        ("createQueue", {"qname": "n", item: number}) for item in ("vt", "delay", "maxsize") for number in NUMBERS
    ],
    "numbers of new settings": [
        ("setQueueAttributes", {"qname": "q", item: number})
        for item in ("vt", "delay", "maxsize") for number in NUMBERS
    ],
    "numbers of a message": [
        call
        for number in NUMBERS
        for call in (
            ("sendMessage", {"qname": "q", "message": "x", "delay": number}),
            ("receiveMessage", {"qname": "q", "vt": number}),
            ("changeMessageVisibility", {"qname": "q", "id": ID, "vt": number}),
        )
    ],
}  # fmt: skip


def told(peer: Peer, method: str, options: dict[str, Any]) -> Any:
    """Its refusal, or what it left in the settings; ids and times are nobody's."""
    try:
        answer = peer(method, **options)
    except Refused as refused:
        return refused.name, refused.message
    if isinstance(answer, dict) and "vt" in answer:
        return {item: answer[item] for item in ("vt", "delay", "maxsize")}
    return "ok"


@pytest.mark.parametrize("kind", CALLS)
def test_call_is_taken_or_refused_as_node_does_it(peer, redis, kind):
    node, ours = peer("node"), peer("jobq")
    told_apart = []
    for method, options in CALLS[kind]:
        outcomes = []
        for one in (node, ours):
            redis.flushall()
            node("createQueue", qname="q")
            outcomes.append((told(one, method, dict(options)), settings(redis)))
        if outcomes[0] != outcomes[1]:
            told_apart.append((method, options, *outcomes))
    assert told_apart == []


def settings(redis: Any) -> Any:
    return [
        (key, redis.hmget(key, "vt", "delay", "maxsize")) for key in sorted(redis.keys("rsmq:*:Q"))
    ]
