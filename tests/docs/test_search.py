"""The search of the built site: readers' words lead to the guide, and pages for maintainers stay out."""

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


@pytest.mark.long
def test_search_leads_to_the_guide_first_when_the_site_is_built(tmp_path):
    tools.library("sphinx")
    tools.library("furo")
    node = tools.program("node")()
    if node is None:
        tools.not_run("node is missing")
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "html", "docs", str(tmp_path)], cwd=ROOT, check=True
    )  # fmt: skip
    script = Path(__file__).with_name("search.js")
    done = subprocess.run(
        [node, script, tmp_path, *FIRST, "mutant"], capture_output=True, text=True, check=True
    )
    *pages, of_maintainers = map(json.loads, done.stdout.splitlines())
    assert {query: names[0] for query, names in zip(FIRST, pages, strict=True)} == FIRST
    assert [name for name in of_maintainers if name.startswith("internals/")] == []
