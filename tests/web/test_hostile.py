"""Hostile text in every field that a stranger may write: no page makes an element, an attribute or an address of it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest
from redis import Redis

from jobq.client.connection import Client
from jobq.queue.queue import Queue
from jobq.web.names import encoded
from jobq.web.routes import DeclaredRoute, load_pages
from tests.hostile import HOSTILE

TEXTS = (
    "<script>pwn()</script>", "<img src=x onerror=pwn()>", '"><svg onload=pwn()>', "'><iframe src=javascript:pwn()>",
    "</title><x-pwn>", "</textarea><x-pwn>", "</script><x-pwn>", "--><x-pwn>", "<!--",
    "]]><x-pwn>", '" onmouseover="pwn()', "' onfocus='pwn()",
    '" style="x:expression(pwn())', "javascript:pwn()", "data:text/html,<x-pwn>", "//evil.example/x",
    "https://evil.example/", "\\\\evil.example",
    "{{ 7*7 }}", "{% raw %}", "${7*7}", "<%= 7*7 %>", "&lt;x-pwn&gt;", "&#60;x-pwn&#62;", "%3Cx-pwn%3E",
    "\\u003cx-pwn\\u003e", "＜x-pwn＞",
    "\x1b[2J\x1b]0;pwn\x07", "\u202egnp.nwp", "\u2066x\u2069", "\u200b\ufeff", "a\x00b", "a\r\nSet-Cookie: pwn=1",
    "x" * 3_000, "\ud800",
    "../../../etc/passwd", "..", "?a=b#c",
    "{'a': '<x-pwn>'}", '{"password": "<x-pwn>"}', "<a href='javascript:pwn()'>x</a>",
)  # fmt: skip
#: Elements that pages are made of.
_NAMES = """
html head meta title link script body header nav main footer section h1 h2 h3 h4 p div span a ul ol li dl dt dd form
label input select option optgroup textarea button table caption thead tbody tfoot tr th td time code kbd pre details
summary strong em small br hr figure figcaption noscript fieldset legend progress meter output abbr b svg g path line
rect circle text tspan polyline polygon desc use defs clippath datalist
"""
ELEMENTS = frozenset(_NAMES.split())


class Elements(HTMLParser):
    """Collects what is wrong with a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag not in ELEMENTS or (tag == "script" and "integrity" not in known):
            self.wrong.append(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on") or name in ("style", "srcdoc", "formaction", "http-equiv"):
                self.wrong.append(f"<{tag} {name}={value!r:.60}>")
            local = (value or "").startswith(("/", "#", "?")) and not (value or "").startswith(
                ("//", "/\\")
            )
            if name in ("href", "src", "action", "xlink:href") and value and not local:
                self.wrong.append(f"<{tag} {name}={value!r:.60}>")


def wrong(html: str) -> list[str]:
    """Return the parts of a page that are not from jobq's templates."""
    parser = Elements()
    parser.feed(html)
    return parser.wrong


def test_what_is_wrong_with_a_page_is_noticed():
    assert [wrong(f"<p title=\"{text}\">{text}</p>") for text in TEXTS[:4]] == [
        ["<script>"], ["<img>", "<img src='x'>", "<img onerror='pwn()'>"], ["<svg onload='pwn()'>"] * 2,
        ["<iframe>", "<iframe src='javascript:pwn()'>"],
    ]  # fmt: skip


def plain(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def fill(queue: Queue, client: Client, redis: Redis) -> None:
    """Write each text into each field, like a program that ignores all rules."""
    now, low = client.clock_ms(), "jobq:{low}:"
    queue.enqueue(b"{}", mid="first")
    taken = [
        *TEXTS,
        *(one.decode("latin-1") if isinstance(one, bytes) else one for one in HOSTILE[:12]),
    ]
    pipe = redis.pipeline(transaction=False)
    for n, text in enumerate(taken):
        raw = plain(text)
        content = json.dumps({
            "job": text[:150] or "x", "args": [text, {text: [text]}], "kwargs": {text: text}, "enqueued_at": now,
            "headers": {text: text, "traceparent": text},
        }).encode()  # fmt: skip
        for mid, place in ((raw, "ready"), (b"m%d" % n, "ready"), (b"due%d" % n, "due")):
            pipe.hset(f"{low}messages", mid, content)
            pipe.zadd(f"{low}due", {mid: now + 60_000}) if place == "due" else pipe.rpush(
                f"{low}ready", mid
            )
        pipe.hset(f"{low}progress", b"m%d" % n, raw + b"\x1e" + json.dumps({text: text}).encode())
        pipe.hset(f"{low}result:m{n}", "x", "y") if n == 0 else None
        reason = raw + b"\n\nTraceback " + raw
        pipe.zadd(f"{low}dead", {raw + b"#1": now - n})
        pipe.hset(
            f"{low}dead_messages",
            raw + b"#1",
            b"3\x1f1\x1fg\x1f%d\x1f%s%s" % (len(reason), reason, content),
        )
        fields = [
            b"retry",
            b"m%d" % n,
            b"%d" % now,
            raw,
            b"1",
            b"",
            b"5",
            b"5",
            b"5",
            raw,
            raw,
            raw,
            b"",
            raw,
            raw,
        ]
        pipe.xadd(f"{low}events", {"1": b"\x1f".join(one.replace(b"\x1f", b" ") for one in fields)})
        worker = {
            "host": text, "pid": n, "version": text, "queues": ["low", text], "slots": 1, "running": 1, "jobs": text,
            "seen_at": now,
            "lease_ms": 15_000, "started_at": now,
        }  # fmt: skip
        pipe.hset("jobq:workers", raw, json.dumps(worker))
        child = {
            "pid": n,
            "state": text,
            "rss": 1,
            "ended": 1,
            "running": [["low", f"m{n}", now], [text, text, now]],
        }
        pipe.hset("jobq:running", raw, json.dumps([child]))
        pipe.xadd(
            "jobq:audit",
            dict.fromkeys(
                ("who", "role", "verb", "queue", "filter", "note", "phase", "op", "by"), raw
            ),
        )
    pipe.execute()


def addresses(route: DeclaredRoute) -> list[str]:
    """Paths of a page: of the queue low, and with each text as each name, once."""
    if not route.parameters:
        return [route.path]
    found = []
    for name in route.parameters:
        for text in TEXTS:
            values = {"queue": "low", "mid": "m1", name: text}
            found.append(
                re.sub(
                    r"\{([a-z_]+)[^}]*\}",
                    lambda part, values=values: encoded(values.get(part[1], "x")),
                    route.path,
                )  # type: ignore[misc]
            )
    return [
        *found,
        *(
            re.sub(r"\{queue[^}]*\}", "low", re.sub(r"\{mid[^}]*\}", f"m{n}", route.path))
            for n in range(len(TEXTS))
        ),
    ]


def test_hostile_text_stays_text_on_every_page(
    queue: Queue, client: Client, redis: Any, visit: Any
):
    fill(queue, client, redis)
    page, shown = visit(), set[str]()
    for route in load_pages().declared.values():
        if route.method != "GET" or route.program or route.name == "static":
            continue
        for address in dict.fromkeys(addresses(route)):
            reply = page.get(address, follow_redirects=False)
            assert "This page failed" not in reply.text, address
            if "text/html" in reply.headers.get("content-type", ""):
                assert wrong(reply.text) == [], address
                shown |= {route.name} if "x-pwn" in reply.text else set()
                strange = {one for one in reply.text if not one.isprintable() and one != "\n"}
                assert not strange, (address, strange)
            assert "pwn" not in str(reply.headers), address
    assert shown >= {"queue_messages", "queue_events", "message", "dead", "workers", "worker"}


@pytest.mark.parametrize(
    "path",
    [
        "/messages",
        "/queues/low/messages",
        "/queues/low/events",
        "/dead",
        "/find",
        "/queues",
        "/login",
    ],
)
def test_hostile_address_is_answered_in_words(queue: Queue, client: Client, visit: Any, path: str):
    queue.enqueue(b"{}", mid="m")
    page = visit()
    for text in TEXTS:
        value = quote(plain(text[:400]))
        names = ("f", "q", "cursor", "place", "range", "sort", "page", "offset", "next")
        for some in (names, names[:2]):
            query = "&".join(f"{name}={value}" for name in some)
            reply = page.get(f"{path}?{query}", follow_redirects=False)
            assert "This page failed" not in reply.text, (path, text)
            assert wrong(reply.text) == [], (path, text)
            assert not reply.headers.get("location", "/").startswith(("//", "http", "/\\"))
