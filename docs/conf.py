"""Sphinx: MyST pages, furo, warnings are errors. `docs/make_*.py` write the Markdown of the API and of commands."""

from __future__ import annotations

import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.addnodes import index

sys.path.insert(0, str(Path(__file__).parents[1]))

import jobq

ROOT = Path(__file__).parents[1]

project = "jobq"
author = "The jobq authors"
copyright = author
release = jobq.__version__
extensions = ["myst_parser"]
if find_spec("sphinx_copybutton"):  # without it, blocks have no button
    extensions.append("sphinx_copybutton")
copybutton_prompt_text = "$ "
default_role = "code"
# Quotes in code and commands stay as they were typed.
smartquotes = False
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"jobq {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_search_scorer = str(ROOT / "docs" / "_static" / "scorer.js")
_URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get(
    "urls", {}
)
if "Source" in _URLS:  # each page links to its source, and to the form that edits it
    html_theme_options = {
        "source_repository": _URLS["Source"],
        "source_branch": "main",
        "source_directory": "docs/",
    }


#: Words that lead to a page first. Full-text search ranks by titles, and readers search for other words than those.
SEARCHED = {
    "start/faq": ("faq", "exactly once", "windows"),
    "jobs/options": ("options", "decorator"),
    "jobs/retries": ("retry", "retries", "backoff", "dead letter", "dead-letter", "attempts"),
    "jobs/scheduling": ("delay", "eta", "countdown", "expire", "expiry", "later"),
    "jobs/schedules": ("cron", "schedule", "periodic", "beat"),
    "jobs/results": ("result", "progress"),
    "jobs/unique": ("unique", "deduplicate", "debounce", "throttle", "idempotent"),
    "jobs/keys": ("fairness", "tenant", "order"),
    "jobs/limits": ("rate limit", "concurrency limit"),
    "jobs/testing": ("pytest", "mock"),
    "operating/deploying": ("systemd", "docker", "kubernetes", "timeout", "shutdown"),
    "operating/troubleshooting": ("stuck", "lost"),
    "recipes/pace": ("priority", "priorities"),
    "reference/configuration": ("configuration", "settings", "environment variable"),
}


def setup(app: Any) -> None:
    """Leave pages for maintainers out of the search, and add the words that readers search for."""
    app.connect("env-updated", leave_out_internals)
    app.connect("doctree-read", add_searched)


def leave_out_internals(app: Any, env: Any) -> None:
    """Mark these pages as Sphinx asks for it; their titles stay in the index."""
    for name in env.found_docs:
        if name.startswith("internals/"):
            env.metadata[name]["no-search"] = True


def add_searched(app: Any, page: Any) -> None:
    """Give a page its entries in the index of the search."""
    words = SEARCHED.get(app.env.docname, ())
    page.insert(0, index(entries=[("single", word, "", "main", None) for word in words]))
