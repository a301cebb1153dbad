"""Section 13, A6: every route, with every role and credential, by every method; and a GET changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

from jobq.metrics.serving import Endpoint
from jobq.web import UserRole, create_app
from jobq.web.access import users
from jobq.web.access.bounds import RequestRate
from jobq.web.access.settings import AccessSettings
from jobq.web.assets import assets
from jobq.web.names import encoded
from jobq.web.routes import DeclaredRoute, load_pages
from tests import conftest
from tests.web.shop import SAMPLES, Shop

ROUTES = sorted(load_pages().declared.values(), key=lambda one: (one.path, one.method))
ROLES = [UserRole.READ, UserRole.OPERATE, UserRole.ADMIN]
SAME = {"sec-fetch-site": "same-origin"}
#: A route without a role of its own would be open to readers; these may be, since they concern the visitor alone.
OF_THE_VISITOR = {"log_out"}


class Site(NamedTuple):
    """A dashboard with a user and a token for each role."""

    app: Any
    client: TestClient
    tokens: dict[UserRole, str]
    redis: Any

    def cookie(self, role: UserRole) -> dict[str, str]:
        """The cookie of a new session."""
        guard = self.app.state.site.guard
        mark = guard.users.user(role.word).mark
        session = guard.sessions.start(role.word, "password", mark)
        return {"cookie": f"jobq-80={session}"}

    def token(self, role: UserRole) -> dict[str, str]:
        """The header of a token."""
        return {"authorization": f"Bearer {self.tokens[role]}"}

    def ask(self, method: str, path: str, headers: dict[str, str]) -> Any:
        """One request of a browser, or a program, without cookies of an earlier one."""
        self.client.cookies.clear()
        return self.client.request(method, path, headers=headers, follow_redirects=False)


@pytest.fixture(scope="module")
def site(servers: Any, short_folder: Any, tmp_path_factory: Any) -> Iterator[Site]:
    """The dashboard of a filled server."""
    path = tmp_path_factory.mktemp("web") / "users.json"
    patch = pytest.MonkeyPatch()
    patch.setattr(users, "password_matches", lambda password, stored: False)
    tokens = {}
    for role in ROLES:
        users.add_user(path, role.word, users.new_user(role.word, True, None))
        tokens[role] = users.add_token(path, role.word, role.word, True, None)
    server = conftest.serving("valkey", servers, short_folder)
    with conftest.emptied(server) as redis, conftest.connected(server) as client:
        Shop(client).fill()
        access = AccessSettings(bind=Endpoint("127.0.0.1", 80), users=path)
        app = create_app(client, access=access)
        # One visitor asks for everything within a second.
        app.state.site.guard.rate = RequestRate(lambda: 0.0)
        app.state.site.guard.rate.take = lambda user: True
        at = "http://127.0.0.1"
        with TestClient(app, base_url=at, raise_server_exceptions=False) as browser:
            yield Site(app, browser, tokens, redis)
        app.state.site.close()
    patch.undo()


def path_of(route: DeclaredRoute) -> str:
    names = {"file": assets()["app.css"].served, **SAMPLES}
    return re.sub(r"\{([a-z_]+)[^}]*\}", lambda name: encoded(names[name[1]]), route.path)


def methods_of(site: Site, path: str) -> set[str]:
    """The methods of all routes that the path leads to: a worker may be called `orders`."""
    return {
        method for one in site.app.routes if one.path_regex.match(path) for method in one.methods
    }


def is_refused(reply: Any) -> bool:
    """Whether the reply is a rejection for missing rights."""
    to_login = reply.status_code == 303 and reply.headers["location"].startswith("/login")
    return to_login or reply.status_code in (401, 403)


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: one.name)
def test_a_route_serves_those_whose_role_suffices_and_nobody_else(site: Site, route: DeclaredRoute):
    path = path_of(route)
    for role in ROLES:
        for by, headers in (("cookie", site.cookie(role)), ("token", site.token(role))):
            reply = site.ask(route.method, path, {**SAME, **headers})
            wanted = not route.role or (role >= route.role and (by == "token") == route.program)
            assert is_refused(reply) != wanted or (
                route.name
                in ("log_in", "log_out")  # their own answers: a refused login, the way to it
            ), (role, by, reply.status_code)
            assert reply.status_code != 500, reply.text
    for headers in ({}, {"cookie": "jobq-80=" + "A" * 43}, {"authorization": "Bearer jobq_x"}):
        reply = site.ask(route.method, path, {**SAME, **headers})
        if route.role:
            assert is_refused(reply), (headers, reply.status_code)
        assert "set-cookie" not in reply.headers or route.name == "choose_view"


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: one.name)
def test_a_route_has_its_methods_alone_its_own_host_and_its_own_forms(
    site: Site, route: DeclaredRoute
):
    path, admin = path_of(route), site.cookie(UserRole.ADMIN)
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - methods_of(site, path):
        assert site.ask(method, path, {**SAME, **admin}).status_code == 405, method
    probe = route.name in ("healthz", "readyz")
    reply = site.ask(route.method, path, {**SAME, **admin, "host": "evil.example"})
    assert (reply.status_code == 421) != probe
    if route.method == "GET":
        return
    before = facts(site.redis)
    for headers in (
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "none"}, {},
        {"origin": "http://evil.example"}, {"origin": "null"},
    ):  # fmt: skip
        reply = site.ask(route.method, path, {**headers, **admin})
        assert reply.status_code == 403 and "request" in reply.text, headers
    assert facts(site.redis) == before


def facts(redis: Any) -> dict[bytes, bytes]:
    """Everything in the server, but logins."""
    keys = [key for key in redis.keys("*") if not key.startswith(b"jobq:web:")]
    for key in keys:
        redis.persist(key)  # on a slow machine some would end between two looks
    return {key: redis.dump(key) for key in keys}


def test_a_get_changes_nothing(site: Site):
    site.redis.flushall()
    Shop(site.app.state.site.client).fill()
    before = facts(site.redis)
    cookie, token = site.cookie(UserRole.ADMIN), site.token(UserRole.ADMIN)
    for route in ROUTES:
        if route.method == "GET":
            for method in ("GET", "HEAD"):
                headers = token if route.program else cookie
                reply = site.ask(method, path_of(route), headers)
                assert reply.status_code < 500 or route.name == "readyz", route.name
    after = facts(site.redis)
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert not changed


def test_what_changes_something_needs_more_than_to_read():
    low = {
        one.name for one in ROUTES
        if one.method != "GET" and one.role == UserRole.READ and one.name not in OF_THE_VISITOR
    }  # fmt: skip
    assert not low
    open_to_all = {one.name for one in ROUTES if not one.role}
    assert open_to_all == {"login", "log_in", "static", "choose_view", "healthz", "readyz"}


def test_every_route_is_declared(site: Site):
    """Starlette serves only the routes that `routes.py` declares."""
    served = {(one.path, method) for one in site.app.routes for method in one.methods - {"HEAD"}}
    assert served == {(one.path, one.method) for one in ROUTES}


def test_a_read_only_dashboard_changes_nothing(visit):
    page = visit(UserRole.ADMIN, read_only=True)
    for route in ROUTES:
        if route.method != "GET" and route.role > UserRole.READ and not route.program:
            assert page.post(path_of(route)).status_code == 403, route.name
