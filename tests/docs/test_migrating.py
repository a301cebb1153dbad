"""The commands of the guide for moving, run as they are written there, against the real RQ and Celery."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs import pages
from tests.docs.pages import ROOT, Shell

GUIDE = (ROOT / "docs" / "interop" / "migrating.md").read_text()


def blocks(section: str, language: str) -> list[str]:
    """The code blocks of one language in a section."""
    text = re.split(r"^## ", GUIDE, flags=re.MULTILINE)
    found = next(part for part in text if part.startswith(f"{section}\n"))
    return [block.text for block in pages.blocks(found) if block.language == language]


@pytest.fixture
def shell(server: Any, redis: Any, tmp_path: Path) -> Iterator[Callable[[str], Shell]]:
    """shell(section): in a folder with that section's files."""
    made: list[Shell] = []

    def make(section: str, url: str = "") -> Shell:
        made.append(Shell(tmp_path, url or server.url))
        made[0].write(blocks(section, "python"))
        return made[0]

    yield make
    for one in made:
        one.close()


def test_rq_and_jobq_run_side_by_side(shell):
    guide = shell("From RQ")
    guide.run(blocks("From RQ", "sh")[0])
    assert sorted(guide.lines("resized")) == ["a.jpg 100 rq", "b.jpg 200 jobq"]


def test_what_waits_in_rq_is_moved(shell, redis):
    guide = shell("From RQ")
    enqueue = blocks("From RQ", "sh")[0].splitlines()[0]
    guide.run("\n".join([enqueue, enqueue, *blocks("From RQ", "sh")[1].splitlines() * 2]))
    guide.run("BY=jobq jobq worker --import app.images --queues low --burst")
    assert guide.lines("resized") == ["a.jpg 100 jobq"] * 2
    assert redis.llen("rq:queue:low") == 0


def test_celery_and_jobq_run_side_by_side(shell, server):
    # Celery's transport spells the address of a socket in its own way.
    guide = shell("From Celery")
    (module,) = blocks("From Celery", "python")
    address = f'"redis+socket://{server.socket}"'
    (guide.folder / "app" / "mails.py").write_text(
        module.replace('os.environ.get("JOBQ_URL")', address)
    )
    guide.run(blocks("From Celery", "sh")[0])
    guide.until("sent", {"old@example.org celery", "new@example.org jobq"})


def test_flows_do_what_celery_does_with_chains_groups_chords_and_maps(shell, server):
    guide = shell("From Celery's canvas")
    module = guide.folder / "app" / "orders.py"
    address = f'"redis+socket://{server.socket}"'
    module.write_text(module.read_text().replace('os.environ.get("JOBQ_URL")', address))
    text = guide.run(blocks("From Celery's canvas", "sh")[0])
    lines = {"chain 3", "chord 11", "map [3, 3, 5]", "failed None"}
    guide.until("notes", {f"{by} {line}" for by in ("celery", "jobq") for line in lines})
    assert "failed" in text


def test_batch_calls_back_as_those_of_sidekiq_do(shell):
    guide = shell("From Sidekiq's batches")
    assert "done" in guide.run(blocks("From Sidekiq's batches", "sh")[0])
    guide.until("imports", {"row 0", "row 1", "row 2", "all of rows.csv", "0 failed"})
    assert len(guide.lines("imports")) == 5


def test_worker_runs_what_is_pushed_for_sidekiq(shell):
    guide = shell("From Sidekiq")
    text = guide.run("export BY=jobq\n" + blocks("From Sidekiq", "sh")[0])
    guide.until("worked", {"a 2 jobq"})
    assert "pushed to sidekiq queue:default" in text


def test_worker_runs_what_is_pushed_for_resque(shell):
    guide = shell("From Resque")
    text = guide.run("export BY=jobq\n" + blocks("From Resque", "sh")[0])
    assert '{"class":"Archive","args":[7]}' in text
    assert guide.lines("archived") == ["7 jobq"]


def test_every_block_of_commands_is_run_here():
    tried = Path(__file__).read_text()
    for section in re.findall(r"^## (.*)$", GUIDE, re.MULTILINE):
        for number in range(len(blocks(section, "sh"))):
            assert f'blocks("{section}", "sh")[{number}]' in tried
