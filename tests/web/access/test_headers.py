"""Section 11.8 and 11.14: restrictions of browsers in replies, and the absence of requests to other hosts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from jobq.web import UserRole
from jobq.web.access.headers import CSP

WEB = Path(__file__).parents[3] / "jobq" / "web"
#: Modules that send requests, by the first part of their names.
CLIENTS = {
    "urllib",
    "http",
    "httpx",
    "requests",
    "aiohttp",
    "ftplib",
    "smtplib",
    "socket",
    "urllib3",
    "boto3",
}
#: Submodules that don't send requests.
HARMLESS = {"urllib.parse", "http.cookies"}


def directives():
    return dict(one.strip().partition(" ")[::2] for one in CSP.split(";"))


def test_the_policy_allows_nothing_but_the_dashboard_itself():
    found = directives()
    assert found.pop("img-src") == "'self' data:"
    assert {
        found.pop(name) for name in ("script-src", "style-src", "connect-src", "form-action")
    } == {"'self'"}
    assert {found.pop(name) for name in ("default-src", "base-uri", "frame-ancestors")} == {
        "'none'"
    }
    assert found == {"require-trusted-types-for": "'script'", "trusted-types": "jobq"}


def test_every_reply_has_the_headers_even_the_broken_one(visit, monkeypatch):
    page = visit(UserRole.READ)
    page._transport.raise_server_exceptions = False

    def broken(*given):
        raise ZeroDivisionError

    ways = {
        "page": lambda: page.get("/"),
        "missing": lambda: page.get("/nothing"),
        "method": lambda: page.put("/"),
        "role": lambda: page.post("/workers/w/end"),
        "form": lambda: page.post("/view", headers={"sec-fetch-site": "cross-site"}),
        "body": lambda: page.post("/view", content=b"x" * (1 << 21)),
        "address": lambda: page.get("/?" + "x" * 9_000),
        "static": lambda: page.get(re.findall(r'"(/static/[^"]+)"', page.get("/").text)[0]),
        "api": lambda: page.get("/api/v1/jobs"),
    }
    replies = {name: ask() for name, ask in ways.items()}
    monkeypatch.setattr(page.app.state.site.guard, "identify", broken)
    replies["broken"] = page.get("/")
    statuses = {name: reply.status_code for name, reply in replies.items()}
    assert statuses == {
        "page": 200, "missing": 404, "method": 405, "role": 403, "form": 403, "body": 413, "address": 414,
        "static": 200, "api": 401, "broken": 500,
    }  # fmt: skip
    for name, reply in replies.items():
        headers = reply.headers
        assert headers["content-security-policy"] == CSP, name
        assert headers["x-content-type-options"] == "nosniff", name
        assert headers["referrer-policy"] == "same-origin", name
        assert headers["cross-origin-opener-policy"] == "same-origin", name
        assert headers["cross-origin-resource-policy"] == "same-origin", name
        assert ("immutable" if name == "static" else "no-store") in headers["cache-control"], name
        assert not {"server", "x-powered-by", "access-control-allow-origin"} & set(headers), name


def test_templates_have_no_inline_style_or_script_and_lead_nowhere_else():
    for path in (WEB / "templates").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"<[a-z][^>{]*\s(?:style|on\w+)\s*=|javascript:|<style|<base\b|<iframe|<object|<embed",
            text,
            re.IGNORECASE,
        ), path
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), path
        assert not re.search(
            r"""(?:src|href|action|poster|srcset)\s*=\s*["'](?:https?:)?//""", text
        ), path
    for path in (WEB / "static").glob("*.css"):
        assert not re.search(r"url\(|@import", path.read_text(encoding="utf-8")), path


def test_the_script_has_no_way_from_text_to_code():
    text = (WEB / "static" / "app.js").read_text(encoding="utf-8")
    assert not re.search(
        r"\beval\b|new Function|innerHTML\s*=|outerHTML\s*=|insertAdjacentHTML|document\.write|https?://",
        text,
    )


def test_the_package_sends_no_request():
    found = []
    for path in WEB.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [one.name for one in node.names] if isinstance(node, ast.Import)
                else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            )  # fmt: skip
            found += [f"{path.name}: {name}" for name in names
                      if name.partition(".")[0] in CLIENTS and name not in HARMLESS]  # fmt: skip
    # The server's own socket, which it listens on.
    assert found == ["serving.py: socket"]
