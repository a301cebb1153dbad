"""Section 13, A6: under FastAPI, Flask and Django, by WSGI and ASGI, the dashboard is the same at any prefix."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from jobq.errors import ConfigError
from jobq.queue.queue import Queue
from jobq.web import Identity, UserRole, create_app
from jobq.web.wsgi import wsgi_app
from tests import tools

HERE = Path(__file__).parent
SAME = {"Sec-Fetch-Site": "same-origin"}
ANNA = Identity("anna", UserRole.ADMIN, arguments=True)


@pytest.fixture
def filled(client: Any, queue: Queue) -> Any:
    """A server with two queues."""
    queue.enqueue(b"{}", mid="m")
    Queue("mails/2026-ä", client).enqueue(b"{}", mid="m", delay=600)
    return client


def plain(text: str) -> str:
    """A page without what changes from one second to the next."""
    return re.sub(r"<time.*?</time>|\d+(\.\d+)?( ?(ms|s|m)\b)?", "#", text)


def links_of(text: str) -> list[str]:
    """Where a page leads."""
    return re.findall(r'(?:href|src|action)="([^"#]*)"', plain(text))


def by_program(request: Any) -> Identity | None:
    """Who sends a request, by a header that a test sets."""
    return ANNA if request.headers.get("x-who") == "anna" else None


def fastapi_replies(client: Any) -> dict[str, Any]:
    app = FastAPI()
    app.mount("/ops/jobq", create_app(client, title="mounted", identify=by_program))
    page = TestClient(app, base_url="http://testserver", follow_redirects=False)
    return replies_of(lambda *words, **given: page.request(*words, **given))


def flask_replies(client: Any) -> dict[str, Any]:
    app = tools.library("flask").Flask("shop")

    def identify(request: Any) -> Identity | None:
        with app.request_context(request.scope["wsgi_environ"]):
            return by_program(request)

    mounted = wsgi_app(client, title="mounted", identify=identify)
    dispatch = tools.library("werkzeug.middleware.dispatcher").DispatcherMiddleware
    page = tools.library("werkzeug.test").Client(dispatch(app.wsgi_app, {"/ops/jobq": mounted}))

    def ask(method: str, path: str, **given: Any) -> Any:
        return page.open(path, method=method, base_url="http://testserver", **given)

    return replies_of(ask)


def replies_of(ask: Any) -> dict[str, Any]:
    """Return the replies for a visitor with a name, and under `nobody` for an anonymous visitor."""
    anna = {"x-who": "anna", **SAME}
    return {
        "queues": ask("GET", "/ops/jobq/queues", headers=anna),
        "root": ask("GET", "/ops/jobq/", headers=anna),
        "missing": ask("GET", "/ops/jobq/nothing", headers=anna),
        "choice": ask("POST", "/ops/jobq/view", headers=anna, data={"theme": "dark", "next": "/ops/jobq/queues"}),
        "foreign": ask("POST", "/ops/jobq/view", headers={**anna, "Sec-Fetch-Site": "cross-site"}, data={"next": "x"}),
        "large": ask("POST", "/ops/jobq/view", headers=anna, data={"next": "x" * 1_200_000}),
        "nobody": ask("GET", "/ops/jobq/queues", headers=SAME),
        "named": ask("GET", "/ops/jobq/queues/mails~2F2026-%C3%A4", headers=anna),
    }  # fmt: skip


def direct(client: Any, path: str, **settings: Any) -> str:
    """A page of a dashboard with the prefix, which no program mounts."""
    app = create_app(
        client, title="mounted", prefix="/ops/jobq", identify=lambda _: ANNA, **settings
    )
    page = TestClient(app, base_url="http://testserver", follow_redirects=False)
    text: str = page.get(path).text
    return text


@pytest.mark.parametrize("replies", [fastapi_replies, flask_replies])
def test_mounted_pages_equal_those_of_a_prefix(filled: Any, replies: Any):
    got = replies(filled)
    assert {name: one.status_code for name, one in got.items()} == {
        "queues": 200, "root": 200, "missing": 404, "choice": 303, "foreign": 403, "large": 413, "nobody": 403,
        "named": 200,
    }  # fmt: skip
    for name, path in (("queues", "/ops/jobq/queues"), ("missing", "/ops/jobq/nothing")):
        assert plain(got[name].text) == plain(direct(filled, path))
    assert got["choice"].headers["location"] == "/ops/jobq/queues"
    links = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', got["queues"].text))
    assert links and all(link.startswith("/ops/jobq/") for link in links)
    assert "frame-ancestors 'none'" in got["queues"].headers["content-security-policy"]
    assert "mails/2026-ä" in got["named"].text


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "//evil.example", "/\\evil", "admin", "/a b"]
)
def test_home_url_is_rejected_when_it_is_no_link(client: Any, url: str):
    with pytest.raises(ConfigError, match="home_url="):
        create_app(client, identify=by_program, home_url=url)


def test_a_program_that_says_nothing_of_users_mounts_nothing(client: Any):
    with pytest.raises(ConfigError, match="needs identify="):
        create_app(client)


def env_of(server: Any, folder: Path) -> dict[str, str]:
    """The environment of a process that serves the dashboard, with a database in the folder."""
    return {
        **os.environ, "JOBQ_URL": server.url, "DATABASE": str(folder / "db.sqlite3"), "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": f"{folder}:{HERE}:{HERE.parents[2]}",
    }  # fmt: skip


@pytest.fixture
def django_replies(filled: Any, server: Any, tmp_path: Path) -> Any:
    """The replies of a Django project, by user and by interface."""
    ran = subprocess.run(
        [sys.executable, str(HERE / "django_site.py")],
        env=env_of(server, tmp_path),
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_in_django_its_permissions_are_the_roles(django_replies: Any, filled: Any):
    way_back = {"home_url": "/admin/", "home_label": "Admin"}
    expected = plain(direct(filled, "/ops/jobq/queues", **way_back))
    for user, status in [
        ("root", 200),
        ("anna", 200),
        ("operate", 200),
        ("read", 200),
        ("none", 403),
        ("", 302),
    ]:
        for way in ("wsgi", "asgi"):
            got = django_replies[user][way]
            assert got["queues"][0] == got["root"][0] == status, (user, way)
            if user == "anna":
                # The first page of a process shows the data of one sample.
                assert way == "asgi" or plain(got["queues"][2]) == expected
                assert links_of(got["queues"][2]) == links_of(expected)
            if status == 200:
                role = {"read": "read", "operate": "operate"}.get(user, "admin")
                assert f"Role: {role}" in got["queues"][2]
                assert got["missing"][0] == 404 and got["foreign"][0] == 403
                assert got["choice"][:2] == [303, "/ops/jobq/queues"]
                assert any(
                    "jobq_view=" in one and "Path=/ops/jobq" in one for one in got["choice"][4]
                )
                assert (got["end"][0] == 403) == (role != "admin")
                assert "default-src 'none'" in got["queues"][3]["content-security-policy"]
            elif user == "":
                assert got["queues"][1] == "/admin/login/?next=/ops/jobq/queues"
    assert django_replies["anna"]["wsgi"]["large"][0] == 413
    assert django_replies["anna"]["wsgi"]["entry"][:2] == [302, "/ops/jobq/"]
    for user, shown in [("root", True), ("read", True), ("none", False)]:
        assert ("/admin/jobq/dashboard/" in django_replies[user]["wsgi"]["index"][2]) == shown


#: How each server is started with the project; it takes a free port, and prints it.
SERVERS = {
    "runserver": ("{site}", "runserver"),
    "wsgiref": ("{site}", "wsgiref"),
    "gunicorn": ("-m", "gunicorn", "--bind", "127.0.0.1:0", "--no-control-socket", "django_site:wsgi"),
    "waitress": ("-m", "waitress", "--listen", "127.0.0.1:0", "django_site:wsgi"),
    "uvicorn": ("-m", "uvicorn", "--port", "0", "django_site:asgi"),
    "hypercorn": ("-m", "hypercorn", "--bind", "127.0.0.1:0", "django_site:asgi"),
}  # fmt: skip


@pytest.fixture(scope="module")
def django_session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with a project's database, and the session of its superuser."""
    folder = tmp_path_factory.mktemp("django")
    ran = subprocess.run(
        [sys.executable, str(HERE / "django_site.py"), "session"],
        env={**os.environ, "DATABASE": str(folder / "db.sqlite3"), "PYTHONPATH": str(HERE.parents[2])},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return folder, ran.stdout.strip()


@contextmanager
def serving(words: list[str], env: dict[str, str], folder: Path) -> Iterator[tuple[str, int]]:
    """The address and the process id of a server that prints where it listens."""
    with subprocess.Popen(
        [sys.executable, *words], env=env, cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout
        try:
            output = ""
            while not (address := re.search(r"http://127\.0\.0\.1:\d+", output)):
                line = process.stdout.readline()
                assert line, output
                output += line
            yield address[0], process.pid
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.mark.parametrize("name", SERVERS)
def test_django_dashboard_answers_under_each_server(
    filled: Any, server: Any, django_session: tuple[Path, str], name: str
):
    if name not in ("runserver", "wsgiref"):
        tools.library(name)
    folder, session = django_session
    words = [word.format(site=HERE / "django_site.py") for word in SERVERS[name]]
    cookies = {"sessionid": session}
    with serving(words, env_of(server, folder), folder) as (address, _):
        with httpx.Client(base_url=address, cookies=cookies, headers=SAME, timeout=60) as page:
            queues = page.get("/ops/jobq/queues")
            assert queues.status_code == 200 and "mails/2026-ä" in queues.text
            assert re.search(r'<a class="home" href="/admin/">Admin</a>', queues.text)
            choice = page.post("/ops/jobq/view", data={"theme": "dark", "next": "/ops/jobq/queues"})
            assert choice.status_code == 303
            missing = page.get("/ops/jobq/nothing")
            assert missing.status_code == 404 and "Nothing here" in missing.text


def wsgi_status(app: Any, **environ: Any) -> str:
    """The status line of one WSGI request that no client would send."""
    started: list[str] = []
    given = {
        "REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "PATH_INFO": "/queues", "QUERY_STRING": "",
        "SERVER_NAME": "testserver", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "testserver",
        "HTTP_X_WHO": "anna", "HTTP_SEC_FETCH_SITE": "same-origin", "wsgi.url_scheme": "http",
        "wsgi.input": open(os.devnull, "rb"), **environ,  # noqa: SIM115
    }  # fmt: skip
    with given["wsgi.input"]:
        b"".join(app(given, lambda status, headers, *more: started.append(status)))
    return started[0]


def test_requests_that_lie_do_not_keep_a_wsgi_thread(filled: Any):
    app = wsgi_app(filled, identify=by_program)
    assert wsgi_status(app) == wsgi_status(app, CONTENT_LENGTH="", CONTENT_TYPE="") == "200 OK"
    for environ, status in [
        ({"QUERY_STRING": "q=\xff"}, "400"), ({"PATH_INFO": "/\xff"}, "400"), ({"CONTENT_LENGTH": "x"}, "400"),
        ({"CONTENT_LENGTH": "-5", "REQUEST_METHOD": "POST"}, "400"),
        ({"CONTENT_LENGTH": "50", "REQUEST_METHOD": "POST"}, "400"),
        ({"CONTENT_LENGTH": "99999999", "REQUEST_METHOD": "POST"}, "413"),
        ({"QUERY_STRING": "x" * 10_000}, "414"),
    ]:  # fmt: skip
        assert wsgi_status(app, **environ)[:3] == status, environ


PRELOADED = """
import os
from werkzeug.test import Client
from jobq.web import Identity
from jobq.web.wsgi import wsgi_app

mounted = wsgi_app(identify=lambda request: Identity("anna"))
# The dashboard is in use, with its threads, before gunicorn forks.
assert Client(mounted).get("/queues").status_code == 200

def app(environ, start_response):
    def with_process(status, headers, *more):
        return start_response(status, [*headers, ("X-Process", str(os.getpid()))], *more)
    return mounted(environ, with_process)
"""


def test_gunicorn_preload_gives_each_process_a_dashboard(filled: Any, server: Any, tmp_path: Path):
    tools.library("gunicorn")
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    words = ["-m", "gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:0",
             "--worker-tmp-dir", str(tmp_path), "preloaded:app"]  # fmt: skip
    with serving(words, env_of(server, tmp_path), tmp_path) as (address, pid):
        with httpx.Client(base_url=address, headers={"Connection": "close"}) as page:
            seen = set()
            for _ in range(200):
                reply = page.get("/queues", timeout=60)
                assert reply.status_code == 200
                seen.add(reply.headers["x-process"])
                if len(seen) == 2:
                    break
        assert str(pid) not in seen
