"""Documents say what is: generated pages are current, examples run, names exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import jobq
from jobq.cli.app import app
from jobq.client.connection import set_default_client
from jobq.config import WorkerSettings
from jobq.jobs import codec, options
from jobq.jobs.endings import UnknownJobs
from jobq.queue import keys
from jobq.queue.directory import queue_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Where people read of a command: pages, help, errors and docstrings.
TELLING = [
    path
    for folder in ("docs", "jobq", "examples", "contrib", "bench")
    for path in sorted((ROOT / folder).rglob("*.*"))
    if path.suffix in {".md", ".py", ".yaml", ".yml"} and "_build" not in path.parts
]


def loaded(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["make_metrics", "make_http_api"])
def test_generated_page_is_what_its_program_makes(name):
    made = loaded(ROOT / "docs" / f"{name}.py")
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), f"run python docs/{name}.py"


def test_summaries_of_measurements_are_those_of_the_last_runs():
    for path, text in loaded(ROOT / "docs" / "make_benchmarks.py").pages().items():
        assert path.read_text(encoding="utf-8") == text, "run python docs/make_benchmarks.py"


def test_every_table_begins_with_its_header():
    """A row after an empty line is no table."""
    torn = [
        f"{page.relative_to(ROOT)}: {row[:60]}"
        for page in PAGES
        for row, below in re.findall(
            r"(?:\A|\n\n)(\|.*)\n(.*)",
            re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE),
        )
        if not re.fullmatch(r"\|[ :|-]+", below)
    ]
    assert not torn


def test_every_page_is_in_a_table_of_contents():
    docs = ROOT / "docs"
    pages = {path for path in docs.rglob("*.md") if "_build" not in path.parts}
    listed = {
        (page.parent / f"{name}.md").resolve()
        for page in pages
        for tree in re.findall(
            r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        )
        for name in re.findall(r"^[a-z][a-z/-]*$", tree, re.MULTILINE)
    }
    assert pages - listed == {docs / "index.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_pages_compiles(page):
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
        compile(block, f"{page.name}:{number}", "exec", flags=0x2000)  # top-level await


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as MyST and GitHub make them."""
    lines = re.sub(
        r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE
    ).splitlines()
    titles = [line.lstrip("#").strip() for line in lines if line.startswith("#")]
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{target}#{anchor}"


def unknown_in(words: list[str]) -> list[str]:
    """The first word that is no command, or the options that the command doesn't have."""
    command: click.Command = app
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        inner = command.get_command(click.Context(command), words[0])
        if inner is None:
            return words[:1]
        command, words = inner, words[1:]
    known = {
        "--help",
        *(name for param in command.params for name in (*param.opts, *param.secondary_opts)),
    }
    named = [re.split(r"[=,;:]", word)[0] for word in words]
    return [name for name in named if re.match(r"--[a-z]", name) and name not in known]


def test_every_command_that_a_text_names_is_there():
    quoted = [
        (str(path.relative_to(ROOT)), text)
        for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *TELLING)
        for text in re.findall(r"`jobq ([a-z-]+(?: [^`\n]*)?)`", path.read_text())
    ]
    assert len(quoted) > 300
    assert [(*text, unknown) for text in quoted if (unknown := unknown_in(text[1].split()))] == []


#: Other programs whose options pages name without `jobq` before them.
OTHERS = {"gunicorn", "pytest"}


def commands_in(group: click.Group) -> Iterator[click.Command]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from commands_in(command)


def test_every_command_that_a_page_names_without_its_group_has_the_option():
    known = {
        (command.name, option)
        for command in commands_in(app)
        for param in command.params
        for option in param.opts
    }
    quoted = {
        (str(page.relative_to(ROOT)), verb, option)
        for page in PAGES
        for verb, option in re.findall(r"`([a-z][a-z-]*) (--[a-z-]+)[^`\n]*`", page.read_text())
        if verb not in {"jobq", *OTHERS}
    }
    assert len(quoted) > 5
    assert [text for text in quoted if text[1:] not in known] == []


def test_wire_page_names_every_key_of_a_queue():
    named = set(
        re.findall(
            r"`([\w?-]+)(?:[:<][^`]*)?`", (ROOT / "docs" / "reference" / "wire.md").read_text()
        )
    )
    listed = re.findall(r"^([\w?-]+)(?::<\w+>)?  +\w", keys.__doc__ or "", re.MULTILINE)
    assert len(listed) > 20
    assert set(listed) <= named


def test_make_help_lists_the_targets():
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("help", "demo", "test", "check", "bench"):
        assert re.search(rf"^  {target} +\w", said.stdout, re.MULTILINE)


def test_example_of_the_api_page_finishes_its_message(server, client):
    text = (ROOT / "docs" / "reference" / "api" / "queue.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    subprocess.run(
        [sys.executable, "-c", block], check=True, cwd=ROOT, env={"JOBQ_URL": server.url}
    )
    assert client.command("HGET", "jobq:{bytes}:messages", "m") is not None
    assert client.command("SISMEMBER", "jobq:{bytes}:done", "m") == 1


def test_example_of_the_wire_page_enqueues_what_a_worker_reads(server, queue, client):
    text = (ROOT / "docs" / "reference" / "wire.md").read_text()
    block, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", block], check=True, cwd=ROOT, env={"REDIS_URL": server.url},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout == "[b'added', b'']\n"
    [message] = queue.dequeue(1, lease=15).messages
    call = codec.decode(message.content)
    assert (message.mid, call.job, call.args) == (
        "resize:a.jpg", "app.images.resize", ["a.jpg", 200],
    )  # fmt: skip
    assert queue_names(client) == ["low"]


def test_example_of_the_wire_page_is_undone_as_it_says(client, capsys):
    text = (ROOT / "docs" / "reference" / "wire.md").read_text()
    _, block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    set_default_client(client)
    try:
        exec(compile(block, "wire.md", "exec"), {})
    finally:
        set_default_client(None)
    said = re.findall(r"\)  # (.*)$", block, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == said


def test_unknown_job_waits_as_long_as_the_operations_page_says():
    assert UnknownJobs().for_s == WorkerSettings().unknown_for_s == 15 * 60
    assert (
        "for 15 minutes (`--unknown-job-retry-for`)"
        in (ROOT / "docs" / "operating" / "deploying.md").read_text()
    )


def test_architecture_and_contributing_name_files_that_are_there():
    for page in ("docs/internals/architecture.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text()
        named = re.findall(r"`((?:jobq|lua|tests|docs|examples|bench)/(?!_build)[\w/.]*)`", text)
        assert named
        assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", ["make_api", "make_cli"])
def test_generated_pages_are_what_their_program_makes(name):
    made = loaded(ROOT / "docs" / f"{name}.py")
    texts = made.pages()
    assert {path for path in texts if path.parent == made.FOLDER} == set(made.FOLDER.glob("*.md"))
    stale = [path for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], f"run python docs/{name}.py"


def test_table_of_options_has_a_row_for_each_option():
    made = loaded(ROOT / "docs" / "make_api.py")
    rows = re.findall(r"^\| `(\w+): .*` \| `.+` \| \S.*\|$", made.options_table(), re.MULTILINE)
    assert sorted(rows) == sorted(options._CHECKS)


def test_pages_of_the_api_name_every_public_name_of_the_package():
    made = loaded(ROOT / "docs" / "make_api.py")
    text = "".join(made.page(name) for name in made.PAGES)
    headings = set(re.findall(r"^### `jobq\.(?:\w+\.)*(\w+)`$", text, re.MULTILINE))
    elsewhere = {
        "AsyncJob", "BatchJob", "SyncJob", "Client", "__version__", "config", "events", "errors", "middleware", "retry",
        "default_registry",
    }  # fmt: skip
    assert set(jobq.__all__) - headings <= elsewhere


def test_page_of_platforms_has_a_row_for_each_extra():
    made = loaded(ROOT / "docs" / "make_platforms.py")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    _, _, rows = made.PAGE.read_text(encoding="utf-8").partition(made.BEGIN)
    listed = re.findall(r"^\| `([\w-]+)` \|", rows.partition(made.END)[0], re.MULTILINE)
    assert listed == list(project["optional-dependencies"]), "run python docs/make_platforms.py"
