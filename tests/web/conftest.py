"""A dashboard over a real server, visitors with a role, and one browser for all tests of a process."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from jobq.client.connection import Client
from jobq.metrics.serving import Endpoint
from jobq.web import Identity, UserRole, create_app
from jobq.web.access.bounds import RequestRate
from jobq.web.access.settings import AccessSettings
from tests import tools

#: Chromium's own requests are switched off.
FLAGS = [
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic",
    "--no-first-run", "--disable-gpu",
]  # fmt: skip
Visit = Callable[..., TestClient]


def app_of(client: Client, settings: dict[str, Any]) -> Any:
    """A dashboard whose visitors may ask as often as tests do."""
    app = create_app(client, **settings)
    app.state.site.guard.rate = RequestRate(itertools.count(0, 60).__next__)
    return app


@pytest.fixture
def visit(client: Client) -> Iterator[Visit]:
    """`visit(UserRole.OPERATE, arguments=True, title="x")`: a browser without JavaScript of somebody who is logged in.

    `visit(None)`: of somebody who isn't. Its `app` is the dashboard.
    """
    made: list[TestClient] = []

    def visiting(
        role: UserRole | None = UserRole.ADMIN, *, arguments: bool = True, **settings: Any
    ) -> TestClient:
        if role is None:
            settings.setdefault("access", AccessSettings(bind=Endpoint("127.0.0.1", 80)))
        else:
            who = Identity("anna", role, arguments)
            settings.setdefault("identify", lambda request: who)
        app = app_of(client, settings)
        made.append(
            TestClient(app, base_url="http://127.0.0.1", headers={"Sec-Fetch-Site": "same-origin"})
        )
        return made[-1]

    yield visiting
    for one in made:
        one.app.state.site.close()  # type: ignore[attr-defined]
        one.close()


@contextmanager
def serving_app(
    client: Client,
    role: UserRole | None = UserRole.ADMIN,
    *,
    made: Callable[[Any], None] | None = None,
    **settings: Any,
) -> Iterator[str]:
    """The address of a dashboard that a real HTTP server serves; all visitors have `role`, unless it is None.

    made: called with the dashboard before it is served.
    """
    if role is None:
        settings.setdefault("access", AccessSettings(bind=Endpoint("127.0.0.1", 80)))
    else:
        settings.setdefault("identify", lambda request: Identity("anna", role, True))
    app = app_of(client, settings)
    if made is not None:
        made(app)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    # A visitor that comes before the thread has begun waits, and isn't refused.
    listening.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        app.state.site.close()


@pytest.fixture
def served(client: Client) -> Iterator[Callable[..., str]]:
    """`served(title="x")`: the address of a dashboard, as `serving_app`."""
    with ExitStack() as stack:
        yield lambda *role, **settings: stack.enter_context(serving_app(client, *role, **settings))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the browser tests of a module. Mark such tests `filterwarnings("ignore")`.

    While Playwright runs, this thread has a running event loop: no other module could call asyncio.run.
    """
    where = tools.chromium()
    from playwright.sync_api import sync_playwright

    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as play:
        launched = play.chromium.launch(executable_path=where, args=[*FLAGS, *sandbox])
        yield launched
        launched.close()


@contextmanager
def browsing(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """Yield a tab. `said` is its console output; it connects only to `address`."""
    context = browser.new_context(timezone_id="Europe/Berlin", **options)
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on(
        "request",
        lambda one: None if one.url.startswith(address) else page.said.append(f"asked {one.url}"),
    )
    yield page
    context.close()
