"""Every block of every README, of the tutorial and of the guides runs here, in order, as a reader would type it.

`python` blocks whose first line is a file's name are that file; other Python is typed into an interpreter. Blocks
without a language and `sh` are commands. `output` is what the terminals must show by then. `text` is a drawing.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq.queue.directory import queue_names
from jobq.queue.queue import Queue
from tests import tools
from tests.client.deployments import free_port
from tests.docs.pages import DEADLINE_S, ROOT, Shell, blocks, type_page
from tests.examples.test_email import Mailbox

READMES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("**/README.md"))
#: Pages of docs/ whose blocks other tests run, and which.
ELSEWHERE = {
    **{
        f"docs/data/{name}.md": "tests/pipeline/test_guides.py"
        for name in ("index", "ingest", "reports", "replay", "erase", "engines", "source", "write")
    },
    "docs/jobs/django.md": "tests/django/test_guide.py",
    "docs/interop/migrating.md": "tests/docs/test_migrating.py",
    "docs/interop/reliable.md": "tests/protocols/reliable/test_page.py",
    "docs/interop/rsmq.md": "tests/protocols/rsmq/test_documents.py",
    "docs/reference/api/queue.md": "tests/docs/test_documents.py",
    # Examples of the commands' help, each alone: test_documents.py compares the pages with the commands.
    **{
        str(path.relative_to(ROOT)): "tests/docs/test_documents.py"
        for path in (ROOT / "docs" / "reference" / "cli").glob("*.md")
    },
    "docs/reference/wire.md": "tests/docs/test_documents.py",
}
GUIDES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "docs").rglob("*.md")
    if "_build" not in path.parts
    and str(path.relative_to(ROOT)) not in ELSEWHERE
    and any(block.is_run for block in blocks(path.read_text()))
)
PAGES = ["README.md", *READMES, *GUIDES]
#: Pages that `make test` follows. `make test-all` follows the others, whose promises the tests of their subjects hold.
FIRST = {"README.md", "docs/index.md", "docs/start/tutorial.md"}

SPARK = "Spark takes 1.1 GB; tests/pipeline runs it, and examples/spark in test_examples.py there"
KEPT = "large packages; tests/pipeline/test_lake_examples.py follows the page in make soak"
INSTALLS = "the network; tests/packaging installs jobq"
CHAOS = "minutes; tests/chaos runs the command and every fault"
ACL = "users would stay on the server of the tests; tests/security gives them their rights"
#: What isn't run here and why, by the page and by how a command or the block begins.
NOT_RUN = {
    ("README.md", "make demo"): "tests/examples/test_stdlib_census.py runs the demo",
    ("README.md", "make pipeline"): SPARK,
    ("README.md", "make test"): "the whole suite",
    ("README.md", 'pip install "path/to/jobq[embedded]"'): INSTALLS,
    ("docs/start/install.md", "pip install"): INSTALLS,
    ("docs/operating/dashboard.md", "jobq web"): "it serves until it is stopped; tests/web does",
    ("docs/internals/chaos.md", "jobq chaos"): CHAOS,
    ("docs/internals/chaos.md", "make chaos"): CHAOS,
    ("docs/operating/security.md", "jobq acl | valkey-cli"): ACL,
    ("docs/operating/security.md", "valkey-cli ACL"): ACL,
    **{
        (f"examples/{name}/README.md", begins): KEPT
        for name, shown in (
            ("lake_dbt", ("pip", "export", "jobq lake compact", "cd examples", "dbt build", "dbt show")),
            ("lake_dagster", ("pip", "export", "cd examples", "dagster definitions", "dagster job",
                              "dagster schedule", "dagster-daemon")),
        )
        for begins in shown
    },
    ("examples/django_app/README.md", "pip install"): INSTALLS,
    ("examples/django_app/README.md", "python manage.py"): "tests/examples/test_django_app.py runs it",
    ("examples/spark/README.md", "pip install"): INSTALLS,
    ("examples/spark/README.md", "export JOBQ_URL"): SPARK,
    ("examples/spark/README.md", "python examples/spark"): SPARK,
    ("examples/spark/README.md", "jobq worker"): SPARK,
    ("examples/spark/README.md", "eval"): SPARK,
    ("examples/spark/README.md", "spark-submit"): SPARK,
    ("examples/spark/pipelines/README.md", "pip install"): INSTALLS,
    ("examples/spark/pipelines/README.md", "cp -r"): SPARK,
    ("examples/spark/pipelines/README.md", "cd ~/history"): SPARK,
    ("examples/spark/pipelines/README.md", "sed -i.bak"): SPARK,
    ("examples/spark/pipelines/README.md", "export JOBQ_URL"): SPARK,
    ("examples/spark/pipelines/README.md", "eval"): SPARK,
    ("examples/spark/pipelines/README.md", "spark-pipelines"): SPARK,
    ("examples/stdlib_census/README.md", "make"): "make installs; the test of the example runs jobq demo",
    ("examples/stdlib_census/README.md", "jobq demo"): "tests/examples/test_stdlib_census.py runs it",
    ("examples/topic_node/README.md", "export JOBQ_URL"): "the reader's server; the test has one",
}  # fmt: skip
#: What a page needs beyond Python.
NEEDS = {"examples/topic_node/README.md": "node"}
#: Messages that a page leaves by queue, other than delayed ones. The tutorial revives one at its end.
LEFT = {
    "docs/start/tutorial.md": {"accounts": 1, "low": 1},
    "docs/operating/logs-and-traces.md": {"default": 1},
}
#: Pages with a job that raises, whose traceback the worker logs.
FAILING = {
    "docs/recipes/work.md",
    "docs/recipes/control.md",
    "docs/interop/celery.md",
    "docs/jobs/retries.md",
    "docs/jobs/flows.md",
    "docs/operating/logs-and-traces.md",
    "docs/jobs/context.md",
}


def not_run(page: str, text: str) -> bool:
    return any(page == where and text.startswith(begins) for where, begins in NOT_RUN)


@pytest.fixture
def walk(server: Any, client: Any, redis: Any, tmp_path: Path) -> Iterator[Callable[[str], Shell]]:
    """walk(page): all that the page shows, typed in its order in a fresh checkout; what it started still runs."""
    ports, mailbox = {8000: free_port(), 5000: free_port()}, Mailbox()
    connects = [
        f'connect-to = "localhost:{usual}:127.0.0.1:{port}"\n' for usual, port in ports.items()
    ]
    (tmp_path / ".curlrc").write_text("".join(connects))
    # The first pip on the path is another Python's where this one's environment was made without.
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n')
    pip.chmod(0o755)
    env = {
        "CURL_HOME": str(tmp_path), "UVICORN_PORT": str(ports[8000]), "FLASK_RUN_PORT": str(ports[5000]),
        "PIP_NO_INDEX": "1",
        "SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(mailbox.server_address[1]), "ORDERS": "3", "EVERY_S": "0.05",
    }  # fmt: skip
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shell = Shell(tmp_path, server.url, env)
    shell.env["PATH"] = f"{pip.parent}:{shell.env['PATH']}"

    def typed(page: str) -> Shell:
        # Pages run side by side, so each has ports of its own.
        text = (ROOT / page).read_text().replace("127.0.0.1:9464", f"127.0.0.1:{free_port()}")
        type_page(shell, text, lambda text: not_run(page, text))
        return shell

    yield typed
    shell.close()
    mailbox.shutdown()
    mailbox.server_close()
    redis.function_flush()


def waiting(client: Any) -> dict[str, int]:
    """Messages by queue that a worker could end now, and dead ones."""
    owed = {}
    for name in queue_names(client):
        counts = Queue(name, client).admin.counts()
        if left := counts.ready + counts.locked + counts.requeued + counts.dead:
            owed[name] = left
    return owed


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page in FIRST else pytest.mark.long) for page in PAGES],
)
def test_page_runs_as_typed_and_its_workers_serve_what_it_enqueues(page, walk, client):
    needed = [NEEDS.get(page), "curl" if "curl " in (ROOT / page).read_text() else None]
    for why in [tools.missing(tool) for tool in needed if tool]:
        if why:
            tools.not_run(why)
    shell = walk(page)
    for process in shell.jobs:
        assert process.wait(DEADLINE_S) == 0, shell.output()
    deadline = time.monotonic() + DEADLINE_S
    while (left := waiting(client)) != LEFT.get(page, {}):
        assert time.monotonic() < deadline, (left, shell.output())
        time.sleep(0.02)
    for process in shell.servers:
        assert shell.interrupt(process) in {0, 130, -2}, shell.output()
    assert ("Traceback" in shell.output()) == (page in FAILING)


def test_each_exception_begins_something_that_a_page_shows():
    for page, begins in NOT_RUN:
        shown = blocks((ROOT / page).read_text())
        lines = [
            line
            for block in shown
            for line in (block.commands if block.is_commands else [block.text])
        ]
        assert any(line.startswith(begins) for line in lines), (page, begins)
    assert set(NEEDS) | set(LEFT) <= set(PAGES)
