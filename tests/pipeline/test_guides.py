"""Every block of the guides to Spark runs, in order, as a reader would type it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tools
from tests.docs import pages
from tests.docs.pages import ROOT, Shell, type_page
from tests.pipeline.conftest import LIMIT_S

FOLDER = ROOT / "docs" / "guides" / "spark"
#: What isn't run, by how it begins.
NOT_RUN = {
    "pip install": "the network; tests/packaging installs jobq",
    "spark-submit": "test_examples.py submits a program",
}


@pytest.fixture
def shell(valkey_client: Any, valkey: Any, tmp_path: Path, monkeypatch: Any) -> Iterator[Shell]:
    """A terminal in an empty folder, for one server and two cores."""
    tools.library("pyspark")
    monkeypatch.setattr(pages, "DEADLINE_S", LIMIT_S / 2)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # Rollups are left to `compact`: each would start Spark once more.
    env = {
        "JOBQ_SPARK_MASTER": "local[2]", "SPARK_LOCAL_DIRS": str(scratch), "JOBQ_LAKE_INGEST_ROLLUP": "0",
    }  # fmt: skip
    made = Shell(tmp_path, valkey.url, env)
    yield made
    made.close()


@pytest.mark.parametrize("page", sorted(path.name for path in FOLDER.glob("*.md")))
def test_guide_runs_as_typed(page: str, shell: Shell) -> None:
    type_page(shell, (FOLDER / page).read_text(), lambda text: text.startswith(tuple(NOT_RUN)))
    for process in shell.jobs:
        assert process.wait(pages.DEADLINE_S) == 0, shell.output()
