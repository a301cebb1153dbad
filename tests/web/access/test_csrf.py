"""Section 11.5: forms and scripts of other sites are refused, in words."""

from __future__ import annotations

import pytest

from tests.web.access.gated import gated

UNSAFE = ["POST", "PUT", "DELETE", "PATCH"]


def sent(method, path="/queues/low/pause", **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return gated(trusted_proxies=("127.0.0.1",)).request(method, path, headers=names)


@pytest.mark.parametrize("method", UNSAFE)
def test_the_page_itself_may(method):
    assert sent(method, sec_fetch_site="same-origin").status_code == 200


@pytest.mark.parametrize("method", UNSAFE)
@pytest.mark.parametrize(
    "site", ["cross-site", "same-site", "none", "", "SAME-ORIGIN", "same-origin, same-origin"]
)
def test_every_other_page_may_not(method, site):
    reply = sent(method, sec_fetch_site=site, origin="http://127.0.0.1:8700")
    assert reply.status_code == 403
    assert "another page" in reply.text


@pytest.mark.parametrize(
    ("origin", "host", "proto"),
    [
        ("http://127.0.0.1:8700", "127.0.0.1:8700", "http"),
        ("http://localhost", "localhost:80", "http"),
        ("http://localhost:80", "localhost", "http"),
        ("https://LOCALHOST", "localhost:443", "https"),
        ("http://[::1]:8700", "[::1]:8700", "http"),
    ],
)
def test_a_browser_without_fetch_metadata_proves_it_by_the_origin(origin, host, proto):
    assert sent("POST", origin=origin, host=host, x_forwarded_proto=proto).status_code == 200


@pytest.mark.parametrize(
    ("origin", "host", "proto"),
    [
        ("http://evil.example", "127.0.0.1:8700", "http"),
        ("http://127.0.0.1:8701", "127.0.0.1:8700", "http"),
        ("http://127.0.0.1", "127.0.0.1:8700", "http"),
        ("https://127.0.0.1:8700", "127.0.0.1:8700", "http"),
        ("http://127.0.0.1:8700", "127.0.0.1:8700", "https"),
        ("http://127.0.0.1:8700.evil.example", "127.0.0.1:8700", "http"),
        ("null", "127.0.0.1:8700", "http"),
        ("", "127.0.0.1:8700", "http"),
        ("127.0.0.1:8700", "127.0.0.1:8700", "http"),
        ("http://127.0.0.1:443", "127.0.0.1", "http"),
    ],
)  # fmt: skip
def test_another_origin_proves_nothing(origin, host, proto):
    assert sent("POST", origin=origin, host=host, x_forwarded_proto=proto).status_code == 403


@pytest.mark.parametrize("method", UNSAFE)
def test_a_request_that_says_nothing_is_refused_and_the_words_say_what_to_do(method):
    reply = sent(method)
    assert reply.status_code == 403
    assert "/api/v1 with a token" in reply.text


def test_a_bearer_token_is_the_proof_of_a_program():
    api = "/api/v1/operations"
    assert sent("POST", api, authorization="Bearer jobq_x").status_code == 200
    assert sent("POST", api, authorization="Basic YTpi").status_code == 403
    assert sent("POST", api, authorization="Bearerx").status_code == 403
    evil = {"authorization": "Bearer x", "sec_fetch_site": "cross-site"}
    assert sent("POST", **evil).status_code == 403
    assert sent("POST", "/queues/api/pause", **evil).status_code == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_safe_methods_need_no_proof(method):
    assert sent(method, sec_fetch_site="cross-site").status_code == 200
