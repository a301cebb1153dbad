"""Make the pictures of docs/operating/dashboard.md: a shop on a server of its own, in Debian's Chromium.

`make pictures`, or `python docs/make_pictures.py FOLDER` for every page, light and dark, at two widths.
"""

from __future__ import annotations

import itertools
import math
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from jobq.client.connection import Client, connect  # noqa: E402
from jobq.queue.queue import Queue  # noqa: E402
from jobq.queue.types import Ending  # noqa: E402
from jobq.web.live import sampler_of  # noqa: E402
from tests import conftest, tools  # noqa: E402
from tests.web.conftest import FLAGS, serving_app  # noqa: E402
from tests.web.shop import Shop, page_paths  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
#: Picture -> route, width, height, colours.
SHOWN = {
    "overview": ("overview", 1280, 860, "light"),
    "queue": ("queue", 1280, 860, "dark"),
    "message": ("message", 1280, 860, "light"),
    "dead": ("dead", 1280, 640, "light"),
    "workers": ("worker", 1280, 640, "dark"),
    "flow": ("flow", 1280, 860, "light"),
    "phone": ("overview", 390, 844, "dark"),
}


@contextmanager
def shop() -> Iterator[Client]:
    """A client of a filled server of its own."""
    folder = Path(tempfile.mkdtemp(prefix="jobq-"))
    program = conftest.binary("valkey")
    assert program is not None
    process = conftest.start(program, folder, "--port", "0", "--unixsocket", f"{folder}/s")
    try:
        conftest.answering(process, folder, unix_socket_path=f"{folder}/s")
        client = connect(f"unix://{folder}/s")
        Shop(client).fill()
        yield client
        client.close()
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def remember(app: Any, client: Client) -> None:
    """Give the sampler the figures of the last quarter of an hour, as if a page had been open."""
    sampler, now_ms = sampler_of(app.state.site), client.clock_ms()
    snapshot = sampler.catch_up()
    # The points of a ring are put in order.
    sampler._rings.clear()
    for ago in range(900, 2, -2):
        figures = [
            queue_facts._replace(
                at_ms=now_ms - ago * 1000,
                ready=round(queue_facts.ready * (0.55 + 0.4 * math.exp(-ago / 300) + 0.08 * math.sin(ago / 31 + len(name)))),
                delayed=round(queue_facts.delayed * (0.8 + 0.1 * math.sin(ago / 90))),
                dequeued_per_s=max(0.0, 2.4 + len(name) / 4 + math.sin(ago / 20 + len(name)) - 200 / (ago + 90)),
            )
            for name, queue_facts in snapshot.queues.items()
        ]  # fmt: skip
        totals = snapshot.totals._replace(
            ready=sum(queue_facts.ready for queue_facts in figures), delayed=sum(queue_facts.delayed for queue_facts in figures),
            dequeued_per_s=sum(queue_facts.dequeued_per_s or 0 for queue_facts in figures),
        )  # fmt: skip
        sampler._keep(figures, totals, now_ms - ago * 1000)


@contextmanager
def traffic(client: Client) -> Iterator[None]:
    """Let messages of two queues run meanwhile."""
    enough = threading.Event()

    def run() -> None:
        for number in itertools.count():
            for name in ("images", "search"):
                queue = Queue(name, client)
                queue.enqueue(b"{}", mid=f"now-{number}")
                done = [
                    Ending(mid=message.mid, token=message.token)
                    for message in queue.dequeue(1).messages
                ]
                queue.finish(done)
            if enough.wait(0.08):
                return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    enough.set()
    thread.join()


def take(page: Any, address: str, path: str, file: Path, size: tuple[int, int], colours: str, full: bool = False) -> None:  # fmt: skip
    """Make one picture."""
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=colours)
    page.goto(address + path)
    page.wait_for_selector("html[data-ready]")
    page.screenshot(path=file, full_page=full)
    print(file)


def main(folder: str = "") -> None:
    """Make the pictures of the guide, or in `folder` those of all pages."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    paths = page_paths()
    with (
        shop() as client,
        serving_app(client, title="Shop", made=lambda app: remember(app, client)) as address,
        traffic(client),
        sync_playwright() as play,
    ):
        browser = play.chromium.launch(
            executable_path=tools.chromium(), args=[*FLAGS, "--no-sandbox"]
        )
        page = browser.new_context(timezone_id="Europe/Berlin").new_page()
        page.goto(address)
        # The rate of dequeued messages needs two readings.
        page.get_by_text(re.compile(r"[1-9][0-9.]*/s")).first.wait_for()
        if not folder:
            for name, (route, width, height, colours) in SHOWN.items():
                if route in paths:
                    take(
                        page,
                        address,
                        paths[route],
                        PICTURES / f"{name}.png",
                        (width, height),
                        colours,
                    )
        for route, path in paths.items() if folder else ():
            for width in (1440, 390):
                for colours in ("light", "dark"):
                    file = Path(folder, f"{route}-{colours}-{width}.png")
                    take(page, address, path, file, (width, 860), colours, full=True)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
