"""`jobq demo --pipeline`: all of it with small numbers, and its output before it begins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from jobq.errors import ConfigError, PipelineError
from jobq.pipeline import doctor

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "stdlib_census"
MODULES = ("census_jobs", "counting", "demo", "ledger", "line_jobs", "pipeline", "pool", "sources",
           "summary", "telling")  # fmt: skip


@pytest.fixture
def parts(monkeypatch):
    """The example's modules, as its script sees them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import line_jobs
    import pipeline
    import telling

    yield line_jobs, pipeline, telling
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_demo_ends_with_checked_figures_and_leaves_nothing_but_the_page(
    valkey_client, valkey_redis, tmp_path
):
    (tmp_path / "tmp").mkdir()
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-m", "jobq", "demo", "--pipeline", "--files", "100", "--rows", "2000",
         "--page", str(page)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "JOBQ_URL": valkey_client.url, "PYTHONPATH": str(ROOT),
             "TMPDIR": str(tmp_path / "tmp"), "JOBQ_NAMESPACE": "mine"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    figures = dict(re.findall(r"^    (.+?) {2,}([\d,]+) +[\d,]+$", done.stdout, re.MULTILINE))
    assert figures["rows whose job ran, as jobs wrote down"] == "2,000"
    assert figures["census: finished, by the lake"] == "103"
    assert figures["lines: finished, by the lake"] == "2,000"
    assert int(figures["events in the lake, and written by the server"].replace(",", "")) > 4_206
    assert f"every figure is what it must be\nthe report: {page}" in done.stdout
    assert {"census", "lines"} <= set(re.findall(r"\b(?:census|lines)\b", page.read_text()))
    assert valkey_redis.keys("*") == []
    assert list((tmp_path / "tmp").glob("jobq-census-*")) == []


def test_figure_that_differs_is_told_and_is_no_success(parts, capsys):
    *_, telling = parts
    figures = telling.Figures()
    figures.add("rows", 3, 3)
    assert figures.told()
    figures.add("runs", 4, 3)
    assert not figures.told()
    assert re.search(r"runs +4 +3 +WRONG", capsys.readouterr().out)


def test_line_measured_twice_is_one_line_and_told(parts, tmp_path):
    line_jobs, *_ = parts
    for line, text in ((1, "a"), (2, "bc"), (1, "a")):
        line_jobs.measure(line, text, str(tmp_path))
    assert line_jobs.measured(tmp_path) == (2, 1, 4)


def test_lines_leave_out_blank_ones_and_take_bytes_that_are_no_text(parts, tmp_path):
    _, pipeline, _ = parts
    file = tmp_path / "a.py"
    file.write_bytes(b"x = 1\n\n  \n# \xff\n")
    assert list(pipeline.lines_of([str(file)])) == ["x = 1", "# \ufffd"]


def test_missing_extra_is_told_before_anything_begins(parts, tmp_path, monkeypatch):
    _, pipeline, _ = parts

    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(PipelineError, match=r"pyspark is missing.*pip install .*'pyspark\[sql\]"):
        pipeline.judged(tmp_path / "page.html")


@pytest.mark.spark
def test_page_that_cannot_be_written_is_told_before_anything_begins(parts, tmp_path):
    _, pipeline, _ = parts
    pipeline.judged(tmp_path / "page.html")
    for wrong in (tmp_path, tmp_path / "none" / "page.html"):
        with pytest.raises(ConfigError, match="can't be written"):
            pipeline.judged(wrong)


def test_nothing_of_the_extra_is_loaded_before_it_is_judged():
    code = "import sys, pipeline; print({'pyspark', 'pyarrow', 'pandas', 'deltalake'} & set(sys.modules))"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), str(ROOT)])},
    ).stdout  # fmt: skip
    assert said == "set()\n"


@pytest.mark.parametrize("option", ["--rows", "--page"])
def test_options_of_the_pipeline_are_refused_without_it(option):
    done = subprocess.run(
        [sys.executable, "-m", "jobq", "demo", option, "5"], cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "need --pipeline" in done.stderr
