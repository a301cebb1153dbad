"""Sphinx: MyST pages, furo, warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import jobq

project = "jobq"
author = "The jobq authors"
copyright = author
release = jobq.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"jobq {release}"
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": False}
nitpicky = False
suppress_warnings = ["sphinx_autodoc_typehints"]

napoleon_use_ivar = True
