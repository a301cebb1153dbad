"""`jobq enqueue`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jobq.cli.enqueue import enqueue
from jobq.jobs.options import Options
from jobq.jobs.registry import default_registry
from jobq.queue import presence
from jobq.queue.queue import Queue

JOBS = """
from jobq import job

@job(queue="low")
def resize(path: str, width: int = 100) -> None: ...
"""


@pytest.fixture
def jobs(bare: Path) -> Any:
    """A module of the working folder with one job in it."""
    (bare / "cli_jobs.py").write_text(JOBS)
    yield "cli_jobs"
    sys.modules.pop("cli_jobs", None)
    for jobs in (default_registry._jobs, default_registry._by_name):
        jobs.pop("cli_jobs.resize", None)
    sys.path[:] = [folder for folder in sys.path if folder != str(bare)]


#: Names a queue for a job that no module here and no worker has.
DEFAULT = ("--queue", "default")


def contents(client: Any, queue: str = "default") -> list[dict[str, Any]]:
    """The envelopes that are ready."""
    return [json.loads(entry.content) for entry in Queue(queue, client).admin.content().entries]


def test_enqueue_sends_a_job_by_name_that_nobody_knows_here(cli: Any, client: Any) -> None:
    ended = cli(
        "enqueue", "app.jobs.resize", *DEFAULT, "a.jpg", "width=200", "--mid", "m", "--json"
    )
    assert ended.code == 0
    assert ended.records == [
        {"mid": "m", "action": "added", "state": "", "queue": "default", "job": "app.jobs.resize"}
    ]
    [envelope] = contents(client)
    assert envelope["job"] == "app.jobs.resize"
    assert (envelope["args"], envelope["kwargs"]) == (["a.jpg"], {"width": 200})


def test_enqueue_of_a_mid_that_lives_is_refused_and_is_no_error(cli: Any) -> None:
    cli("enqueue", "a.b", *DEFAULT, "--mid", "m")
    ended = cli("enqueue", "a.b", *DEFAULT, "--mid", "m")
    assert (ended.code, ended.out) == (0, "m  exists  queued\n")
    assert (
        cli("enqueue", "a.b", *DEFAULT, "--mid", "m", "--on-conflict", "replace", "--json").records[
            0
        ]["action"]
        == "updated"
    )


def test_enqueue_with_import_takes_the_queue_of_the_job(cli: Any, client: Any, jobs: str) -> None:
    assert cli("enqueue", "cli_jobs.resize", "a.jpg", "--import", jobs).code == 0
    assert len(contents(client, "low")) == 1
    assert cli("enqueue", "cli_jobs.resize", "a.jpg", "--import", jobs, "--queue", "high").code == 0
    assert len(contents(client, "high")) == 1


def test_enqueue_with_import_refuses_unknown_jobs_and_arguments_that_do_not_fit(
    cli: Any, client: Any, jobs: str
) -> None:
    unknown = cli("enqueue", "cli_jobs.resiez", "--import", jobs)
    assert (unknown.code, unknown.out) == (5, "")
    assert unknown.err == "jobq: no job 'cli_jobs.resiez' here; did you mean cli_jobs.resize?\n"
    assert "is its module in --import?" in cli("enqueue", "zzz", "--import", jobs).err
    wrong = cli("enqueue", "cli_jobs.resize", "a.jpg", "widht=3", "--import", jobs)
    assert wrong.code == 2 and "widht" in wrong.err and len(wrong.err.splitlines()) == 1
    assert contents(client, "low") == []


def test_import_of_a_missing_module_names_it(cli: Any) -> None:
    ended = cli("enqueue", "a.b", "--import", "no_such_module")
    assert ended.code == 2 and "no module 'no_such_module'" in ended.err


@pytest.mark.parametrize(
    "file", ["cli_jobs.py", "./cli_jobs.py", "/x/cli_jobs.py", ".cli_jobs", "cli_jobs.resize"]
)
def test_import_of_a_file_says_how_its_module_is_written(cli: Any, jobs: str, file: str) -> None:
    ended = cli("enqueue", "cli_jobs.resize", "a.jpg", "--import", file)
    assert ended.code == 2 and ended.err.endswith("; write --import cli_jobs\n")


def test_import_that_fails_inside_shows_its_traceback(cli: Any, bare: Path) -> None:
    (bare / "cli_broken.py").write_text("import no_such_thing")
    ended = cli("enqueue", "a.b", "--import", "cli_broken")
    assert ended.code == 70
    assert "Traceback" in ended.err and "cli_broken.py" in ended.err


def test_enqueue_takes_times_and_durations(cli: Any, client: Any) -> None:
    cli("enqueue", "a.b", *DEFAULT, "--mid", "later", "--delay", "1h")
    cli("enqueue", "a.b", *DEFAULT, "--mid", "at", "--at", "4102444800")
    queue = Queue("default", client)
    assert queue.status("later").word == queue.status("at").word == "queued-with-backoff"
    assert queue.status("at").not_before == 4_102_444_800_000
    both = cli("enqueue", "a.b", *DEFAULT, "--delay", "1h", "--at", "4102444800")
    assert both.code == 2 and "use only one" in both.err


def test_args_json_carries_what_words_cannot(cli: Any, client: Any) -> None:
    cli("enqueue", "a.b", *DEFAULT, "1", "--args-json", '["a=b", -5]')
    assert contents(client)[0]["args"] == ["a=b", -5, 1]


def test_file_enqueues_a_call_a_line_in_order(cli: Any, client: Any, bare: Path) -> None:
    lines = [f"[{n}]" for n in range(2500)]
    lines[1200] = '{"args": [1200], "kwargs": {"w": 1}, "mid": "mine"}'
    (bare / "calls.jsonl").write_text("\n".join(lines))
    ended = cli("enqueue", "a.b", *DEFAULT, "--file", "calls.jsonl")
    assert (ended.code, ended.out) == (0, "a.b: 2,500 added\n")
    queue = Queue("default", client)
    page = queue.admin.content(offset=1199, limit=3)
    assert [json.loads(entry.content)["args"] for entry in page.entries] == [[1199], [1200], [1201]]
    assert page.entries[1].mid == "mine"


def test_file_of_stdin_prints_a_record_a_line(cli: Any) -> None:
    ended = cli("enqueue", "a.b", *DEFAULT, "--file", "-", "--json", given='[1]\n{"mid": "m"}\n')
    assert [record["action"] for record in ended.records] == ["added", "added"]
    assert ended.records[1]["mid"] == "m"


def test_file_with_a_bad_line_says_which_and_how_many_were_enqueued(cli: Any, client: Any) -> None:
    given = "\n".join([f"[{n}]" for n in range(1000)] + ['{"mid": "m"}', "nonsense"])
    ended = cli("enqueue", "a.b", *DEFAULT, "--file", "-", given=given)
    assert ended.code == 2
    assert "line 1002" in ended.err and "1,001 earlier calls were sent" in ended.err
    assert Queue("default", client).admin.counts().ready == 1001


def test_file_and_words_together_are_refused(cli: Any) -> None:
    assert cli("enqueue", "a.b", *DEFAULT, "x", "--file", "-", given="").code == 2


def test_call_that_json_cannot_carry_has_its_exit_code(cli: Any) -> None:
    ended = cli("enqueue", "a.b", *DEFAULT, "x" * 300_000)
    assert ended.code == 5 and len(ended.err.splitlines()) == 1


def test_enqueue_takes_the_queue_that_the_job_declares_when_its_module_is_here(
    cli: Any, client: Any, jobs: str
) -> None:
    ended = cli("enqueue", "cli_jobs.resize", "a.jpg", "--json")
    assert (ended.code, ended.err, ended.records[0]["queue"]) == (0, "", "low")


def test_job_that_nobody_knows_is_rejected_unless_a_queue_is_named(
    cli: Any, client: Any, bare: Path
) -> None:
    ended = cli("enqueue", "app.jobs.resiez")
    assert (ended.code, ended.out) == (5, "")
    assert "no worker has it; check its name." in ended.err and "use --queue NAME" in ended.err
    for queue in ("low", "default"):
        facts = {"seen_at": client.clock_ms(), "lease_ms": 15_000, "queues": [queue]}
        presence.put_worker(client, "w", {**facts, "jobs": presence.digest_of(["app.jobs.resize"])})
        presence.put_jobs(client, ["app.jobs.resize"])
        near = cli("enqueue", "app.jobs.resiez")
        assert near.code == 5 and "did you mean app.jobs.resize?" in near.err
        right = cli("enqueue", "app.jobs.resize")
        assert (right.code == 0) == (queue == "default")
        if queue == "low":
            assert "workers of queue low have it" in right.err and "--queue low" in right.err
    assert len(contents(client)) == 1
    assert cli("enqueue", "app.jobs.resiez", "--queue", "low").err == ""


def test_job_is_found_at_the_workers_of_partitions_when_their_queue_is_partitioned(
    cli: Any, client: Any, bare: Path
) -> None:
    facts = {"seen_at": client.clock_ms(), "lease_ms": 15_000, "jobs": presence.digest_of(["a.b"])}
    presence.put_jobs(client, ["a.b"])
    presence.put_worker(client, "w", {**facts, "queues": ["low/0", "low/1"]})
    assert "workers of queue low have it" in cli("enqueue", "a.b").err
    presence.put_worker(client, "w", {**facts, "queues": ["default/0", "default/1"]})
    assert cli("enqueue", "a.b").code == 0


def test_job_is_enqueued_with_a_note_when_the_jobs_of_a_worker_cannot_be_read(
    cli: Any, client: Any, bare: Path
) -> None:
    facts = {"seen_at": client.clock_ms(), "lease_ms": 15_000, "jobs": presence.digest_of(["a.b"])}
    presence.put_worker(client, "w", {**facts, "queues": ["low"]})
    assert "no worker has it" in cli("enqueue", "a.b").err
    presence.put_worker(client, "w", {**facts, "queues": ["default"]})
    ended = cli("enqueue", "a.b")
    assert ended.code == 0 and "a worker runs a.b: the jobs of w can't be read" in ended.err


@pytest.mark.parametrize("meant", ["cli_jobs.rezise", "cli_jobs.resize_"])
@pytest.mark.parametrize("command", ["enqueue", "schedule"])
def test_job_that_its_module_lacks_is_refused_with_the_nearest_name(
    cli: Any, client: Any, jobs: str, meant: str, command: str
) -> None:
    words = (command, meant)
    if command == "schedule":
        words = (command, "add", "s", meant, "--every", "1m")
    ended = cli(*words, "--queue", "low")
    assert (ended.code, ended.out) == (5, "")
    assert ended.err == f"jobq: no job {meant!r} here; did you mean cli_jobs.resize?\n"
    assert contents(client, "low") == []


def test_enqueue_of_a_function_says_what_makes_it_that_job(cli: Any, bare: Path) -> None:
    (bare / "cli_functions.py").write_text(
        "from jobq import job\ndef plain(): ...\n@job(name='mail.send')\ndef send(): ...\n"
    )
    plain, named = cli("enqueue", "cli_functions.plain"), cli("enqueue", "cli_functions.send")
    assert (plain.code, named.code) == (5, 5)
    assert plain.err == "jobq: cli_functions.plain isn't a job; add @job to it in cli_functions\n"
    assert "that function's job is named mail.send" in named.err


def test_enqueue_by_name_passes_when_a_module_of_that_name_has_no_jobs(cli: Any) -> None:
    assert cli("enqueue", "email.send", "--queue", "low").code == 0


def test_enqueue_takes_every_option_of_a_call(cli: Any, client: Any) -> None:
    given = ("--retries", "0", "--timeout", "30s", "--hard-timeout", "1m", "--result-ttl", "1h")
    ended = cli(
        "enqueue", "a.b", *DEFAULT, *given, "--header", "tenant=acme", "--durability", "memory"
    )
    assert ended.code == 0, ended.err
    [envelope] = contents(client)
    assert envelope["options"] == {
        "retries": 0, "timeout": 30, "hard_timeout": 60, "result_ttl": 3600
    }  # fmt: skip
    assert envelope["headers"] == {"tenant": "acme"}


def test_enqueue_has_a_flag_for_each_option_of_a_call() -> None:
    flags = {one.name for one in enqueue.params}
    named = {"client": "url"}
    assert {named.get(name, name) for name in Options.__annotations__} <= flags


def test_unique_call_is_refused_while_one_with_the_same_arguments_waits(cli: Any) -> None:
    first, again, other = (
        cli("enqueue", "a.b", *DEFAULT, word, "--unique", "--json").records[0]
        for word in ("x", "x", "y")
    )
    assert (first["action"], again["action"], other["action"]) == ("added", "exists", "added")
    assert first["mid"] == again["mid"]
    told = cli("enqueue", "a.b", *DEFAULT, "x", "--unique", "--on-conflict", "raise")
    assert told.code != 0 and "a.b" in told.err
    assert cli("enqueue", "a.b", *DEFAULT, "x", "--until", "soon").code == 2
    [late] = cli(
        "enqueue", "a.b", *DEFAULT, "z", "--debounce", "5m", "--debounce-max", "1h", "--json"
    ).records
    assert late["action"] == "added"
