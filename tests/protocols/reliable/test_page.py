"""What docs/interop/reliable.md shows works as it is written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from jobq.cli import main
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable.keys import PLACES, places
from tests.protocols.reliable.conftest import ROOT

PAGE = (ROOT / "docs" / "interop" / "reliable.md").read_text(encoding="utf-8")


def test_example_runs(server, client):
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    environment = {"JOBQ_URL": server.url, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", block], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "mails a@b.example\nmails c@d.example\n0\n"


@pytest.mark.needs("redis-cli")
def test_shell_lines_do_what_they_say(rq, fcall, server, tmp_path):
    [block] = re.findall(r"```\n(K\(\) .*?)```", PAGE, re.DOTALL)
    shell = block.replace("redis-cli", f"redis-cli -s {server.socket}")
    ran = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert "a@b.example" in ran.stdout and "rror" not in ran.stdout
    assert [one.content for one in rq.pending("mails", 0, 9)] == [
        b"a@b.example",
        b"c@d.example",
    ]


def test_rights_suffice_for_a_user_of_one_queue(fcall, redis, plain, capsys):
    [words] = re.findall(r"`jobq (acl reliable [^`]*)`", PAGE)
    assert main([*words.split(), "--user", "one"]) == 0
    redis.execute_command(*capsys.readouterr().out.split(), "nopass")
    plain.execute_command("AUTH", "one", "x")
    names = places("reliable", "mails")
    [id] = plain.execute_command("FCALL", "reliable_push", 8, *names, "a")
    call = [*names, "reliable:{mails}:call:one"]
    plain.execute_command("FCALL", "reliable_pop", 9, *call, 1, "", "TOKEN", "me")
    plain.execute_command("FCALL", "reliable_recover", 8, *names, 1, 0)
    plain.execute_command("FCALL", "reliable_nack", 8, *names, id)
    plain.blpop("reliable:{mails}:tickets", 1)
    plain.execute_command("FCALL", "reliable_rest", 8, *names)
    plain.execute_command("FCALL_RO", "reliable_inspect", 8, *names, 0, 1)
    assert plain.execute_command("FCALL", "reliable_clear", 8, *names, "QUEUE") == 1
    redis.execute_command("ACL", "DELUSER", "one")


def test_page_names_every_key_and_every_method():
    assert re.findall(r"^\| `reliable:\{mails\}:(\w+)` ", PAGE, re.MULTILINE) == list(PLACES)
    methods = {name for name in vars(ReliableQueue) if name[0] != "_"}
    assert {name for name in methods if not re.search(rf"`{name}[(`]", PAGE)} == set()
