"""Pages look as they did: pictures of twelve of them, light on a desk and dark on a phone, in `tests/web/pictures/`.

`python -m pytest tests/web/test_pictures.py --renew-pictures` renews them after an intended change. Letters are
blocks and digits are 0, so that fonts and times don't matter.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.metrics.serving import Endpoint
from jobq.web.access import users
from jobq.web.access.settings import AccessSettings
from jobq.web.live import sampler_of
from tests import conftest
from tests.web.blocks import block_font
from tests.web.conftest import browsing, serving_app
from tests.web.shop import CRON, Shop, page_paths

pytestmark = pytest.mark.filterwarnings("ignore")
PICTURES = Path(__file__).parent / "pictures"
ROUTES = (
    "overview", "queues", "queue", "queue_messages", "message", "dead", "workers", "worker", "topic", "limits",
    "operation", "audit",
)  # fmt: skip
LOOKS = {"light": (1440, 900), "dark": (390, 844)}
#: Share of an image that may differ. A column that is aligned otherwise changes twice as much.
MAX_CHANGED = 0.001
STYLE = """
@font-face { font-family: Blocks; src: url(data:font/ttf;base64,%s); }
* { font-family: Blocks !important; font-synthesis: none !important; }
* { animation: none !important; transition: none !important; }
svg:not(.sign) > *, time { visibility: hidden; }
/* Its width is that of its longest choice, in the font that it had first. */
select { width: 160px !important; }
"""
#: Figures, durations and sizes are 0; a moment is one letter.
PLAIN = r"""() => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (node.parentElement.closest("time")) node.data = "0";
    else node.data = node.data
      .replace(/[0-9][0-9.,:]*( ?(ms|[smhdkM]|[KMG]iB))?(?![a-z])/g, "0").replace(/(0 )+0/g, "0");
  }
}"""
#: Of a picture, or of two: its cells of four by four points, and how many of them differ.
COMPARE = """async ([fresh, kept]) => {
  const CELL = 4, SAME = 24;
  async function cells(data) {
    const image = new Image();
    image.src = "data:image/png;base64," + data;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const drawing = canvas.getContext("2d");
    drawing.drawImage(image, 0, 0);
    return { canvas, points: drawing.getImageData(0, 0, image.width, image.height).data };
  }
  function smaller({ canvas, points }) {
    const small = document.createElement("canvas");
    [small.width, small.height] = [Math.floor(canvas.width / CELL), Math.floor(canvas.height / CELL)];
    const drawing = small.getContext("2d"), made = drawing.createImageData(small.width, small.height);
    for (let at = 0; at < made.data.length; at++) {
      const x = (at >> 2) % small.width, y = Math.floor((at >> 2) / small.width);
      let sum = 0;
      for (let v = y * CELL; v < (y + 1) * CELL; v++)
        for (let h = x * CELL; h < (x + 1) * CELL; h++) sum += points[(v * canvas.width + h) * 4 + at % 4];
      made.data[at] = Math.round(sum / CELL / CELL / 8) * 8;
    }
    drawing.putImageData(made, 0, 0);
    return small;
  }
  const small = smaller(await cells(fresh));
  const found = { picture: small.toDataURL("image/png").split(",")[1], size: [small.width, small.height], changed: -1 };
  if (!kept) return found;
  const before = await cells(kept);
  if (before.canvas.width !== small.width || before.canvas.height !== small.height)
    return { ...found, before: [before.canvas.width, before.canvas.height] };
  const now = small.getContext("2d").getImageData(0, 0, small.width, small.height).data;
  found.changed = 0;
  for (let i = 0; i < now.length; i += 4)
    if ([0, 1, 2].some((part) => Math.abs(now[i + part] - before.points[i + part]) > SAME))
      found.changed += 4 / now.length;
  return found;
}"""


def read_once(app: Any) -> None:
    """Have all pages show one reading of the server, with all that happened before."""
    sampler = sampler_of(app.state.site)
    # A reading of now, whenever a page shows it: pages say how old a reading is.
    found = sampler.catch_up()._replace(taken=math.inf)
    sampler.look = lambda *wait, **after: found


@pytest.fixture(scope="module")
def shop_client(servers: Any, short_folder: Path) -> Iterator[Client]:
    """A client of a filled server, which no test of this module may empty."""
    server = conftest.serving("valkey", servers, short_folder)
    with conftest.emptied(server), conftest.connected(server) as client:
        shop = Shop(client)
        shop.fill()
        for name, *_ in CRON:
            # Whether a tick is late would depend on the hour.
            shop.queues["reports"].admin.schedule("pause", name)
        # How long a message has waited doesn't depend on how long the filling took.
        client.clock_ms = lambda *routed: shop.now + 5_000  # type: ignore[method-assign]
        yield client


@pytest.fixture(scope="module")
def tab(browser: Any, shop_client: Client) -> Iterator[tuple[Any, Any, str]]:
    """A tab that shows pages of a filled server, one that compares, and the address."""
    with (
        serving_app(shop_client, title="Shop", made=read_once) as address,
        browsing(browser, address, bypass_csp=True) as page,
        browsing(browser, "about:blank") as blank,
    ):
        page.context.add_cookies([{"name": "jobq_view", "value": "live=off", "url": address}])
        yield page, blank, address


def picture_of(page: Any, scheme: str, path: str) -> str:
    """A picture of all of a page, as base64."""
    width, height = LOOKS[scheme]
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(path)
    page.wait_for_selector("html[data-ready]")
    page.add_style_tag(content=STYLE % base64.b64encode(block_font()).decode())
    page.evaluate(PLAIN)
    page.evaluate("document.fonts.load('16px Blocks', 'a')")
    return base64.b64encode(page.screenshot(full_page=True)).decode()


@pytest.mark.parametrize("scheme", LOOKS)
def test_login_page_looks_as_it_did(
    tab: tuple[Any, Any, str], shop_client: Client, scheme: str, request: pytest.FixtureRequest, tmp_path: Path
):  # fmt: skip
    page, blank, _ = tab
    path = tmp_path / "users.json"
    users.add_user(path, "anna", users.new_user("read", False, None))
    access = AccessSettings(bind=Endpoint("127.0.0.1", 80), users=path)
    with serving_app(shop_client, None, title="Shop", access=access) as address:
        fresh = picture_of(page, scheme, f"{address}/login?next=/queues")
        fields = [page.locator(f"#{name}").bounding_box() for name in ("name", "password")]
        button = page.get_by_role("button", name="Log in").bounding_box()
    compare(blank, fresh, f"login-{scheme}", request, tmp_path)
    # One below the other, all at the same edge.
    for above, below in pairwise([*fields, button]):
        assert above["y"] + above["height"] <= below["y"]
        assert above["x"] == below["x"]


@pytest.mark.parametrize("scheme", LOOKS)
@pytest.mark.parametrize("route", ROUTES)
def test_page_looks_as_it_did(
    tab: tuple[Any, Any, str], route: str, scheme: str, request: pytest.FixtureRequest, tmp_path: Path
):  # fmt: skip
    page, blank, address = tab
    fresh = picture_of(page, scheme, address + page_paths()[route])
    compare(blank, fresh, f"{route}-{scheme}", request, tmp_path)


def compare(
    blank: Any, fresh: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Compare a picture with the stored one of this name, or store it."""
    kept = PICTURES / f"{name}.png"
    renew = request.config.getoption("--renew-pictures")
    before = "" if renew or not kept.exists() else base64.b64encode(kept.read_bytes()).decode()
    found = blank.evaluate(COMPARE, [fresh, before])
    if renew:
        PICTURES.mkdir(exist_ok=True)
        kept.write_bytes(base64.b64decode(found["picture"]))
        return
    shown = tmp_path / f"{name}.png"
    shown.write_bytes(base64.b64decode(fresh))
    assert 0 <= found["changed"] <= MAX_CHANGED, (
        f"the page looks different: {found['changed']:.2%} changed, {found.get('before', '')} -> {found['size']}; "
        f"look at {shown}, and if that is meant run this test with --renew-pictures"
    )


def test_what_differs_is_found(tab: tuple[Any, Any, str]):
    page, blank, address = tab
    fresh = picture_of(page, "light", address + page_paths()["workers"])
    page.add_style_tag(content="td.n { text-align: left !important }")
    other = base64.b64encode(page.screenshot(full_page=True)).decode()
    kept = blank.evaluate(COMPARE, [fresh, ""])["picture"]
    assert blank.evaluate(COMPARE, [fresh, kept])["changed"] == 0
    assert blank.evaluate(COMPARE, [other, kept])["changed"] > MAX_CHANGED
