"""Engines for the statements of reports: this process, and in the long run Spark as well."""

from __future__ import annotations

import os

import pytest

from jobq.pipeline.report.engines import LocalEngine, SparkEngine, SqlEngine
from tests import tools

SOAK = os.environ.get("JOBQ_LAKE") == "soak"


@pytest.fixture(params=["local", "spark"] if SOAK else ["local"])
def engine(request: pytest.FixtureRequest) -> SqlEngine:
    """An engine without views."""
    tools.library("duckdb")
    if request.param == "local":
        return LocalEngine()
    return SparkEngine(request.getfixturevalue("spark"))
