"""T14: scripts swapped on the server, by who may load functions; and users who may bring none."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jobq.cli import main
from jobq.client import functions
from jobq.client.connection import connect
from jobq.client.numbered_calls import CallState
from jobq.client.scripts import folder
from jobq.config import ServerSettings
from jobq.errors import ScriptError
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.client.deployments import Spread
from tests.conftest import binary

ROOT = Path(__file__).resolve().parents[2]
#: The rights of the scripts themselves; who may call which of them is the ACL's business elsewhere.
FCALL_ONLY = ("~jobq:*", "+@all", "-@dangerous", "-@admin", "-@scripting", "+fcall", "+fcall_ro")


@pytest.fixture
def by_functions(server, redis, client):
    """A client that calls functions as a user who may bring no code."""
    redis.function_flush()
    redis.execute_command("ACL", "SETUSER", "caller", "reset", "on", "nopass", *FCALL_ONLY)
    settings = ServerSettings(
        url=server.url.replace("unix://", "unix://caller:x@"), functions=True, patience_s=10
    )
    made = connect(settings=settings)
    yield made
    made.close()
    redis.execute_command("ACL", "DELUSER", "caller")
    redis.function_flush()


def swap(redis) -> None:
    source = functions.library().source.replace(b"'RPUSH', ready", b"'LPUSH', ready")
    assert source != functions.library().source
    redis.function_load(source, replace=True)


def test_library_holds_every_script_under_the_hash_of_its_text():
    made = functions.library()
    assert len(made.commands) == len(list(folder().glob("*/[!_]*.lua"))) > 15
    assert made.name.startswith("jobq_") and made.source.startswith(
        f"#!lua name={made.name}".encode()
    )
    by_name = dict(command[::-1] for command in made.commands.values())
    assert by_name[f"{made.name}_enqueue"] == "FCALL"
    assert by_name[f"{made.name}_status"] == "FCALL_RO"


def test_user_with_fcall_alone_does_all_that_a_queue_does(by_functions, client, redis, capsys):
    assert main(["functions", "load", "--url", client.url]) == 0
    assert main(["functions", "load", "--url", client.url]) == 0
    assert functions.library().name in capsys.readouterr().out
    redis.script_flush()
    queue = Queue("low", by_functions)
    assert queue.enqueue(b"{}", mid="m").action == "added"
    assert queue.enqueue(b"{}", mid="m").action == "exists"
    [taken] = queue.dequeue().messages
    queue.finish([Ending(mid="m", token=taken.token, outcome="dead", reason="by hand")])
    assert queue.status("m").word == "dead" and queue.admin.counts().dead == 1
    assert queue.admin.revive(queue.admin.dead()[0].dead_id) == ["revived"]
    assert queue.admin.fsck() == []
    assert redis.info("commandstats").keys() & {"cmdstat_fcall", "cmdstat_fcall_ro"}
    for command in (("EVAL", "return 1", 0), ("SCRIPT", "LOAD", "return 1"), ("SCRIPT", "FLUSH"),
                    ("FUNCTION", "LOAD", "REPLACE", functions.library().source), ("FUNCTION", "FLUSH")):  # fmt: skip
        with pytest.raises(ScriptError, match="permission"):
            by_functions.perform("", CallState(by_functions, command))


def test_missing_library_is_told_with_its_remedy(by_functions):
    with pytest.raises(ScriptError, match="run jobq functions load"):
        Queue("low", by_functions).enqueue(b"{}")


def test_check_tells_missing_and_swapped_libraries(by_functions, client, redis, capsys):
    assert main(["functions", "check", "--url", client.url]) == 4
    assert "missing; run jobq functions load" in capsys.readouterr().err
    functions.load_library(client)
    assert main(["functions", "check", "--url", client.url]) == 0
    swap(redis)
    assert main(["functions", "check", "--url", client.url]) == 4
    assert "was replaced" in capsys.readouterr().err
    functions.load_library(client)
    functions.check_library(client)
    functions.check_library(by_functions)  # who may not look has nothing to say


@pytest.mark.parametrize("swapped", [True, False])
def test_worker_refuses_to_start_on_a_swapped_library(client, redis, swapped, tmp_path):
    (tmp_path / "some_jobs.py").write_text("from jobq import job\n@job\ndef nothing(): ...\n")
    functions.load_library(client)
    if swapped:
        swap(redis)
    ran = subprocess.run(
        [sys.executable, "-m", "jobq", "worker", "--burst", "--processes", "1", "--import", "some_jobs"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JOBQ_URL": client.url, "JOBQ_FUNCTIONS": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ("was replaced" in ran.stderr) == swapped
    assert ran.returncode == (4 if swapped else 0), ran.stderr
    redis.function_flush()


def test_versions_live_side_by_side_until_pruned(client, redis, capsys):
    old = functions.library().source.replace(
        functions.library().name.encode(), b"jobq_0123456789abcdef"
    )
    redis.function_load(old)
    redis.function_load(
        b"#!lua name=other\nredis.register_function('other', function() return 1 end)"
    )
    functions.load_library(client)
    assert functions.other_libraries(client) == ["jobq_0123456789abcdef"]
    assert main(["functions", "load", "--prune", "--url", client.url]) == 0
    assert "jobq_0123456789abcdef: dropped" in capsys.readouterr().out
    assert functions.other_libraries(client) == []
    functions.drop_library(client, "jobq_0123456789abcdef")
    assert len(redis.function_list()) == 2
    redis.function_flush()


def test_every_node_of_a_cluster_gets_the_library(server, tmp_path, capsys):
    spread = Spread(binary(server.kind), tmp_path)
    try:
        assert main(["functions", "load", "--url", spread.url]) == 0
        assert "on 3 nodes" in capsys.readouterr().out
        client = connect(settings=replace(ServerSettings(url=spread.url), functions=True))
        for number in range(6):
            assert Queue(f"queue{number}", client).enqueue(b"{}").action == "added"
        functions.check_library(client)
        client.close()
    finally:
        spread.close()
