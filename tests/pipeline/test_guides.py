"""Every block of the guides to Spark runs, in order, as a reader would type it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jobq.cli import main
from tests.docs import pages
from tests.docs.pages import ROOT, Shell, type_page
from tests.pipeline.conftest import LIMIT_S

FOLDER = ROOT / "docs" / "data"
#: Blocks that aren't run, by their beginning.
NOT_RUN = {
    "pip install": "the network; tests/packaging installs jobq",
    "spark-submit": "test_examples.py submits a program",
}

#: Commands that run in this process, some on the session of all tests: to start would take most of their time.
RUN_HERE = re.compile(r"jobq (lake|report .*--lake) ")


class Terminal(Shell):
    """A terminal some of whose commands run in this process."""

    def run(self, commands: str) -> str:
        if not RUN_HERE.match(commands):
            return super().run(commands)
        words = shlex.split(commands.partition("||")[0], comments=True)[1:]
        with chdir(self.here), CliRunner().isolation(env=self.env) as (out, err, _):
            code = main(words)
        with (self.folder / "output").open("ab") as output:
            output.write(out.getvalue() + err.getvalue())
        assert code == 0 or "|| true" in commands, f"{commands}\n{self.output()}"
        return self.output()


@pytest.fixture
def shell(
    kept_spark: Any, valkey_client: Any, valkey: Any, tmp_path: Path, monkeypatch: Any
) -> Iterator[Shell]:
    """A terminal in an empty folder, for one server and two cores."""
    monkeypatch.setattr(pages, "DEADLINE_S", LIMIT_S / 2)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # Rollups are left to `compact`: each would start Spark again.
    env = {
        "JOBQ_SPARK_MASTER": "local[2]", "SPARK_LOCAL_DIRS": str(scratch), "JOBQ_LAKE_INGEST_ROLLUP": "0",
    }  # fmt: skip
    made = Terminal(tmp_path, valkey.url, env)
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.parametrize("page", sorted(path.name for path in FOLDER.glob("*.md")))
def test_guide_runs_as_typed(page: str, shell: Shell) -> None:
    type_page(shell, (FOLDER / page).read_text(), lambda text: text.startswith(tuple(NOT_RUN)))
    for process in shell.jobs:
        assert process.wait(pages.DEADLINE_S) == 0, shell.output()
