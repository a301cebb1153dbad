"""Section 11.6 and 11.7 as seen by a browser: cookies, login, logout, ends of sessions, proxies that name users."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.metrics.serving import Endpoint
from jobq.queue.audit_log import AuditLog
from jobq.web import Identity, UserRole, create_app
from jobq.web.access import users
from jobq.web.access.guard import AWAY_S
from jobq.web.access.settings import AccessSettings

pytestmark = pytest.mark.usefixtures("quick_hashes")
PASSWORD = "correct horse battery"
SAME = {"sec-fetch-site": "same-origin"}
LOCAL = "http://127.0.0.1:8700"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "users.json"
    users.add_user(path, "anna", users.new_user("operate", True, PASSWORD))
    users.add_user(path, "ben", users.new_user("read", False, None))
    return path


@pytest.fixture
def dashboard(client, path):
    """dashboard(prefix="/x", hosts=…): an application with the users file, or with the given settings."""
    made = []

    def making(*, prefix="", **given):
        given = {"bind": Endpoint("127.0.0.1", 8700), "users": path, **given}
        made.append(create_app(client, prefix=prefix, access=AccessSettings(**given)))
        return made[-1]

    yield making
    for one in made:
        one.state.site.close()


def browser(app, url=LOCAL, peer="192.0.2.1"):
    return TestClient(app, base_url=url, headers=SAME, client=(peer, 1), follow_redirects=False)


def log_in(page, name="anna", password=PASSWORD, at="/login", **headers):
    form = {"name": name, "password": password}
    return page.post(at, data=form, headers=headers)


def test_a_password_logs_in_and_logout_ends_the_session_everywhere(dashboard, redis):
    page = browser(dashboard())
    reply = log_in(page)
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    assert "anna" in page.get("/queues").text
    stolen = dict(page.cookies)
    assert page.post("/logout").headers["location"] == "/login"
    page.cookies.update(stolen)
    assert page.get("/queues").headers["location"].startswith("/login")
    assert redis.keys("jobq:web:session:*") == []


@pytest.mark.parametrize(
    ("url", "prefix", "starts", "flags"),
    [
        ("https://jobs.example.com", "", "__Host-jobq=", {"path=/", "secure", "httponly", "samesite=strict"}),
        ("https://jobs.example.com", "/ops", "__Secure-jobq=", {"path=/ops/", "secure", "httponly", "samesite=strict"}),
        (LOCAL, "", "jobq-8700=", {"path=/", "httponly", "samesite=strict"}),
        ("http://localhost:9", "", "jobq-9=", {"path=/", "httponly", "samesite=strict"}),
        ("http://[::1]:8700", "", "jobq-8700=", {"path=/", "httponly", "samesite=strict"}),
    ],
)  # fmt: skip
def test_the_cookie_is_as_closed_as_the_connection_allows(dashboard, url, prefix, starts, flags):
    page = browser(dashboard(hosts=("jobs.example.com",), prefix=prefix), url)
    reply = log_in(page, at=f"{prefix}/login")
    first, *others = [one.strip() for one in reply.headers["set-cookie"].split(";")]
    assert first.startswith(starts) and len(first) == len(starts) + 43
    assert {one.lower() for one in others if not one.lower().startswith("max-age")} == flags
    assert page.get(f"{prefix}/queues").status_code == 200
    page.post(f"{prefix}/logout")
    assert not page.cookies


def test_no_password_crosses_the_network_unencrypted(dashboard, redis):
    page = browser(dashboard(hosts=("jobs.example.com",)), "http://jobs.example.com")
    reply = log_in(page)
    assert reply.status_code == 403 and "not encrypted" in reply.text
    assert "set-cookie" not in reply.headers and redis.keys("jobq:web:*") == []


def test_a_proxy_that_serves_https_is_trusted_by_its_address_alone(dashboard):
    app = dashboard(hosts=("jobs.example.com",), trusted_proxies=("10.0.0.0/8",))
    https = {"x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.9"}
    url = "http://jobs.example.com"
    assert log_in(browser(app, url, "10.0.0.1"), **https).status_code == 303
    assert log_in(browser(app, url, "192.0.2.1"), **https).status_code == 403


@pytest.mark.parametrize(
    ("peer", "headers", "advice"),
    [
        ("10.0.0.1", {}, "configure the proxy to send X-Forwarded-Proto"),
        (
            "10.0.0.1",
            {"x-forwarded-proto": "http"},
            "configure it to send https for HTTPS connections",
        ),
        ("192.0.2.1", {"x-forwarded-proto": "https"}, "192.0.2.1, which --trusted-proxy doesn"),
    ],
)
def test_login_advises_a_change_of_the_proxy_when_a_trusted_proxy_is_given(
    dashboard, peer, headers, advice
):
    app = dashboard(hosts=("jobs.example.com",), trusted_proxies=("10.0.0.0/8",))
    url = "http://jobs.example.com"
    reply = log_in(browser(app, url, peer), **headers)
    assert reply.status_code == 403 and advice in reply.text
    old_browser = browser(app, url, peer)
    del old_browser.headers["sec-fetch-site"]
    reply = old_browser.post("/login", headers={"origin": "https://jobs.example.com", **headers})
    assert reply.status_code == 403 and advice.partition("doesn")[0] in reply.text


def test_login_is_left_to_others_when_a_proxy_hides_who_failed(dashboard):
    app = dashboard(hosts=("jobs.example.com",), trusted_proxies=("10.0.0.0/8",))
    https, url = {"x-forwarded-proto": "https"}, "http://jobs.example.com"
    for forwarded in ("", "unknown", "192.0.2.9:4711"):
        headers = https | {"x-forwarded-for": forwarded}
        for _ in range(5):
            assert log_in(browser(app, url, "10.0.0.1"), "eve", "wrong", **headers).status_code in (
                403,
                429,
            )
    assert log_in(browser(app, url, "10.0.0.1"), **https).status_code == 303


def test_each_login_is_a_new_session_and_ends_the_one_before(dashboard, redis):
    page = browser(dashboard())
    forged = "A" * 43
    reply = log_in(page, cookie=f"jobq-8700={forged}")
    first = page.cookies["jobq-8700"]
    assert reply.status_code == 303 and first != forged
    log_in(page)
    assert page.cookies["jobq-8700"] not in (first, forged)
    assert len(redis.keys("jobq:web:session:*")) == 1


@pytest.mark.parametrize(
    "change",
    [lambda path: users.remove_user(path, "anna"),
     lambda path: users.add_user(path, "anna", users.new_user("read", True, PASSWORD), replace=True),
     lambda path: users.add_user(path, "anna", users.new_user("operate", True, "another password"), replace=True)],
    ids=["removed", "role", "password"],
)  # fmt: skip
def test_what_changes_a_user_ends_the_sessions(dashboard, path, change, redis):
    page = browser(dashboard())
    log_in(page)
    assert page.get("/queues").status_code == 200
    change(path)
    assert page.get("/queues").headers["location"].startswith("/login")
    assert redis.keys("jobq:web:session:*") == []


def test_logins_are_in_the_audit_log_and_a_flood_is_not(dashboard, client):
    app = dashboard()
    log_in(browser(app, peer="192.0.2.7"))
    for _ in range(8):
        log_in(browser(app), "anna", "wrong password")
    found = [(one.who, one.role, one.phase, one.note) for one in AuditLog(client).newest(100)]
    assert found == [
        *[("anna", "none", "refused", "by password from 192.0.2.1")] * 5,
        ("anna", "operate", "done", "by password from 192.0.2.7"),
    ]


def test_unknown_and_known_names_get_the_same_answer(dashboard):
    app = dashboard()
    replies = [log_in(browser(app), name, "wrong password") for name in ("anna", "ben", "eve")]
    texts = {reply.text.replace(name, "") for reply, name in zip(replies, ("anna", "ben", "eve"))}
    assert {reply.status_code for reply in replies} == {403} and len(texts) == 1
    assert "the name or the password is wrong" in replies[0].text.lower()


def test_the_sixth_failure_from_an_address_waits_even_with_the_right_password(dashboard):
    app = dashboard()
    for _ in range(5):
        assert log_in(browser(app), "anna", "wrong password").status_code == 403
    reply = log_in(browser(app))
    assert reply.status_code == 429 and 0 < int(reply.headers["retry-after"]) <= 900
    assert log_in(browser(app, peer="192.0.2.2")).status_code == 303


def test_a_session_of_the_link_is_worth_nothing_where_people_have_passwords(dashboard, client):
    by_link = dashboard(users=None)
    page = browser(by_link)
    token = by_link.state.site.guard.links.make()
    assert page.post("/login", data={"token": token}).status_code == 303
    assert page.get("/queues").status_code == 200
    other = browser(dashboard())
    other.cookies.update(dict(page.cookies))
    assert other.get("/queues").headers["location"].startswith("/login")


def test_a_proxy_names_users_and_nobody_else_does(dashboard):
    app = dashboard(
        auth_header="X-Remote-User", trusted_proxies=("10.0.0.1",), hosts=("j.example",)
    )
    for peer, names, status in [
        ("10.0.0.1", ["ben"], 200), ("10.0.0.2", ["ben"], 303), ("10.0.0.1", ["eve"], 303),
        ("10.0.0.1", ["ben", "anna"], 303), ("10.0.0.1", [""], 303), ("10.0.0.1", ["be n"], 303),
    ]:  # fmt: skip
        headers = [*SAME.items(), *(("x-remote-user", name) for name in names)]
        page = browser(app, "https://j.example", peer)
        assert page.get("/queues", headers=headers).status_code == status, (peer, names)
    given = {
        "auth_header": "X-Remote-User",
        "trusted_proxies": ("10.0.0.1",),
        "auth_role": UserRole.READ,
    }
    page = browser(dashboard(users=None, **given), peer="10.0.0.1")
    assert "Role: read" in page.get("/queues", headers={"x-remote-user": "eve"}).text


def test_a_program_says_who_sends_a_request(client):
    app = create_app(
        client,
        identify=lambda request: (
            request.headers.get("x-who") and Identity(request.headers["x-who"])
        ),
    )
    page = browser(app, "http://any.example")
    assert "anna" in page.get("/queues", headers={"x-who": "anna"}).text
    reply = page.get("/queues")
    assert reply.status_code == 403 and "Log in to the application that serves" in reply.text
    assert "controlled by the host application" in page.get("/login").text
    assert page.post("/login", data={"name": "anna", "password": PASSWORD}).status_code == 403


def test_who_was_logged_in_reads_on_while_the_server_is_away(dashboard, tmp_path, monkeypatch):
    app = dashboard()
    page = browser(app)
    log_in(page)
    page.get("/queues")
    site = app.state.site
    away = connect(settings=ServerSettings(url=f"unix://{tmp_path}/none", patience_s=0.05))
    monkeypatch.setattr(site.guard.sessions, "_client", away)
    assert "Role: read" in page.get("/queues").text
    assert page.post("/queues/low/pause").status_code in (403, 404, 405)
    now = site.guard._clock()
    monkeypatch.setattr(site.guard, "_clock", lambda: now + AWAY_S + 1)
    assert page.get("/queues").status_code == 503
    stranger = browser(app)
    stranger.cookies.set("jobq-8700", "A" * 43)
    assert stranger.get("/queues").status_code == 503
    away.close()


def test_the_way_back_after_the_login_stays_within_the_dashboard(dashboard):
    app = dashboard()
    for wanted, target in [
        ("/queues?sort=name", "/queues?sort=name"), ("//evil.example", "/"), ("https://e.example/", "/"),
        ("/\\evil.example", "/"), ("/a\r\nX: y", "/"), ("", "/"),
    ]:  # fmt: skip
        form = {"name": "anna", "password": PASSWORD, "next": wanted}
        assert browser(app).post("/login", data=form).headers["location"] == target


def test_hostile_names_and_fields_are_refused_without_harm(dashboard):
    app = dashboard()
    for number, name in enumerate(
        ["<script>alert(1)</script>", "a\x00b", "x" * 100_000, "{{7*7}}", "' OR 1=1 --"]
    ):
        reply = log_in(browser(app, peer=f"192.0.2.{number + 10}"), name, "wrong password")
        assert reply.status_code == 403
        assert "<script>alert" not in reply.text and "49" not in reply.text.partition("<main")[2]
