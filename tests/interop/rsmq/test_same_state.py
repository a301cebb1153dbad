"""The same calls leave the same keys, types and fields as Node's, and are refused in the same words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.rsmq.conftest import Peer, Refused

ID = "hochb5vvsh0123456789abcdefghijkl"
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("createQueue", {"qname": "q", "vt": 20}),
    ("sendMessage", {"qname": "q", "message": "first"}),
    ("sendMessage", {"qname": "q", "message": "", "delay": 60}),
    ("setQueueAttributes", {"qname": "q", "delay": 5, "maxsize": -1}),
    ("sendMessage", {"qname": "q", "message": "later", "vt": 3}),
    ("receiveMessage", {"qname": "q"}),
    ("receiveMessage", {"qname": "q"}),
    ("sendMessage", {"qname": "q", "message": "third", "delay": 0}),
    ("receiveMessage", {"qname": "q", "vt": "12abc"}),
    ("sendMessage", {"qname": "q", "message": "popped", "delay": "0"}),
    ("popMessage", {"qname": "q"}),
    ("deleteMessage", {"qname": "q", "id": "#3"}),
    ("deleteMessage", {"qname": "q", "id": "#0"}),
    ("deleteMessage", {"qname": "q", "id": "#0"}),
    ("createQueue", {"qname": 123, "maxsize": 1024.9}),
    ("deleteQueue", {"qname": "123"}),
    ("getQueueAttributes", {"qname": "q"}),
    ("deleteQueue", {"qname": "q"}),
]


class Seen:
    """A server's content with ids numbered in their order, and times told from what they are counted."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self.ids: list[str] = []

    def content(self) -> dict[str, Any]:
        return {key: self._value(key) for key in sorted(self._text(self._redis.keys()))}

    def _value(self, key: str) -> Any:
        kind = self._redis.type(key).decode()
        if kind == "set":
            return kind, set(self._text(self._redis.smembers(key)))
        if kind == "hash":
            fields = {a.decode(): b.decode() for a, b in self._redis.hgetall(key).items()}
            return kind, {
                self._named(name): self._told(name, value) for name, value in fields.items()
            }
        scores = self._redis.zrange(key, 0, -1, withscores=True)
        return kind, {
            self._named(id_.decode()): self._since(key, id_.decode(), score)
            for id_, score in scores
        }

    def _since(self, key: str, id_: str, score: float) -> tuple[str, float]:
        """Milliseconds since it was received, or sent."""
        received = self._redis.hget(f"{key}:Q", f"{id_}:fr")
        if received:
            return "received", score - int(received)
        return "sent", score - int(id_[:10], 36) // 1000

    def _named(self, name: str) -> str:
        for number, id_ in enumerate(self.ids):
            name = name.replace(id_, f"#{number}")
        return name

    def _told(self, name: str, value: str) -> str:
        known = {"created": 10, "modified": 10}.get(name, 13 if name.endswith(":fr") else 0)
        return f"{known} digits" if known and len(value) == known and value.isdigit() else value

    @staticmethod
    def _text(values: Any) -> list[str]:
        return [value.decode() for value in values]


def played(peer: Peer, redis: Any) -> list[Any]:
    """After each call: what it answered, and all that the server holds."""
    redis.flushall()
    seen, story = Seen(redis), []
    for method, given in CALLS:
        options = dict(given)
        if str(options.get("id", "")).startswith("#"):
            options["id"] = seen.ids[int(options["id"][1:])]
        answer = peer(method, **options)
        if method == "sendMessage":
            seen.ids.append(answer)
            answer = "id"
        if isinstance(answer, dict):
            times = ("fr", "sent", "created", "modified", "hiddenmsgs")
            answer = {
                name: "time" if name in times else seen._named(str(value))
                for name, value in answer.items()
            }
        story.append((method, given, answer, seen.content()))
    return story


def test_server_holds_the_same_after_every_call_as_with_node(peer, redis):
    ours, theirs = played(peer("jobq"), redis), played(peer("node"), redis)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other


BAD: dict[str, list[dict[str, Any]]] = {
    "createQueue": [
        {}, {"qname": ""}, {"qname": "a b"}, {"qname": "x" * 161}, {"qname": "q\n"}, {"qname": 0}, {"qname": False},
        {"qname": "q"}, {"qname": "n", "vt": -1}, {"qname": "n", "vt": "x"}, {"qname": "n", "vt": True},
        {"qname": "n", "vt": 10_000_000}, {"qname": "n", "delay": -0.9999, "vt": -1}, {"qname": "n", "maxsize": 1023},
        {"qname": "n", "maxsize": -2}, {"qname": "n", "vt": "", "delay": "y"},
    ],
    "deleteQueue": [{"qname": "n"}, {}],
    "getQueueAttributes": [{"qname": "n"}],
    "setQueueAttributes": [
        {}, {"vt": 1}, {"qname": "n", "vt": 1}, {"qname": "n", "vt": -1}, {"qname": "q", "delay": -1, "maxsize": 5},
        {"qname": "q", "vt": None},
    ],
    "sendMessage": [
        {"qname": "n", "message": 5}, {"qname": "q", "message": 5, "delay": -1}, {"qname": "q", "message": 5},
        {"qname": "q"}, {"message": "x"}, {"qname": "q", "message": "x" * 65537}, {"qname": "q", "message": ["x"]},
    ],
    "receiveMessage": [{"qname": "n", "vt": -1}, {"qname": "q", "vt": -1}, {}],
    "popMessage": [{"qname": "n"}, {"qname": "no way"}],
    "deleteMessage": [
        {"qname": "n"}, {"id": ID}, {"qname": "n", "id": ID}, {"qname": "q", "id": "short"},
        {"qname": "q", "id": ID + "x"}, {"qname": "q", "id": 5},
    ],
    "changeMessageVisibility": [
        {"qname": "q", "id": ID}, {"qname": "n", "id": "short", "vt": -1}, {"qname": "n", "id": ID, "vt": -1},
        {"qname": "n", "id": ID, "vt": 1}, {"qname": "q", "id": ID, "vt": 1},
    ],
}  # fmt: skip
#: Those that are no errors: what they ask for isn't there.
FINE = [
    ("deleteMessage", {"qname": "n", "id": ID}),
    ("changeMessageVisibility", {"qname": "q", "id": ID, "vt": 1}),
]


def outcome(peer: Peer, method: str, options: dict[str, Any]) -> Any:
    try:
        return peer(method, **options)
    except Refused as refused:
        return refused.name, refused.message


@pytest.mark.parametrize("method", BAD)
def test_every_bad_call_is_answered_as_node_answers_it(peer, redis, method):
    node, ours = peer("node"), peer("jobq")
    node("createQueue", qname="q")
    for options in BAD[method]:
        theirs = outcome(node, method, dict(options))
        assert outcome(ours, method, dict(options)) == theirs
        assert isinstance(theirs, tuple) is not ((method, options) in FINE)


def test_server_error_has_the_name_that_node_gives_it(peer, redis):
    node, ours = peer("node"), peer("jobq")
    node("createQueue", qname="q")
    redis.set("rsmq:q", "no sorted set")
    for one in (node, ours):
        with pytest.raises(Refused, match="WRONGTYPE") as refused:
            one("receiveMessage", qname="q")
        assert refused.value.name == "ReplyError"
