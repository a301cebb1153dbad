"""The built site: readers' words lead to the guide, and tables fit a phone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tools

ROOT = Path(__file__).resolve().parents[2]
FIRST = {
    "retry": "jobs/retries",
    "delay": "jobs/scheduling",
    "cron": "jobs/schedules",
    "dead letter": "jobs/retries",
    "options": "jobs/options",
    "priority": "recipes/pace",
    "faq": "start/faq",
}


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    tools.library("sphinx")
    tools.library("furo")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "html", "docs", str(folder)], cwd=ROOT, check=True
    )  # fmt: skip
    return folder


@pytest.mark.browser
@pytest.mark.parametrize("name", ["jobs/options", "reference/cli/every-day", "reference/metrics"])
def test_table_has_no_hidden_column_when_the_page_is_on_a_phone(site, name):
    playwright = tools.library("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=tools.chromium())
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(f"file://{site}/{name}.html")
        cells, widest = page.evaluate(
            "() => { const all = [...document.querySelectorAll('td')];"
            " return [all.length, Math.max(...all.map(cell => cell.getBoundingClientRect().right))]; }"
        )
        browser.close()
    assert cells > 10
    assert widest <= 390


def test_search_leads_to_the_guide_first_when_the_site_is_built(site):
    node = tools.program("node")()
    if node is None:
        tools.not_run("node is missing")
    script = Path(__file__).with_name("search.js")
    done = subprocess.run(
        [node, script, site, *FIRST, "mutant"], capture_output=True, text=True, check=True
    )
    *pages, of_maintainers = map(json.loads, done.stdout.splitlines())
    assert {query: names[0] for query, names in zip(FIRST, pages, strict=True)} == FIRST
    assert [name for name in of_maintainers if name.startswith("internals/")] == []
