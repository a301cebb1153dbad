"""The page about RSMQ says what is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from jobq.protocols import rsmq as package
from jobq.protocols.rsmq import Rsmq, RsmqError

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "interop" / "rsmq.md").read_text(encoding="utf-8")
FIRST, LOOP, ASYNC = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def ran(program: str, url: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JOBQ_URL": url}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_run_as_written(server, client):
    url = server.url
    assert "to everybody 1" in ran(FIRST.replace("redis://localhost", url), url)
    rsmq = Rsmq(client)
    assert rsmq.counts("mails") == (3, 0)
    rsmq.send_messages("mails", ["", "later"])
    ran(LOOP.replace("max_receives=5", "max_receives=5, burst=True"), url)
    assert rsmq.counts("mails") == (0, 1)
    assert rsmq.counts("mails-dead") == (1, 0)
    ran(ASYNC, url)
    assert rsmq.get_queue_attributes("mails").totalsent == 1_006
    assert rsmq.counts("mails") == (0, 1)


def test_page_names_every_call_and_every_error():
    for name in vars(Rsmq):
        if name[0] != "_" and name not in ("channel", "close", "perform"):
            assert f"`{name}(" in TEXT or f", `{name}(" in TEXT, name
    for kind in RsmqError.__subclasses__():
        assert f"`{kind.__name__}`" in TEXT


def test_package_exports_what_it_lists():
    assert sorted(package.__all__) == package.__all__
    assert all(hasattr(package, name) for name in package.__all__)


def test_bridge_lines_of_the_page_are_what_it_answers(client):
    from jobq.protocols.rsmq.bridge import Bridge

    blocks = [
        text for _, text in re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    ]
    [lines] = [block.splitlines() for block in blocks if '"sendMessage"' in block]
    rsmq = Rsmq(client)
    rsmq.create_queue("mails")
    answers = Bridge(client, rsmq.requests).answer([lines[0].encode(), lines[2].encode()])
    shown = [re.sub(r'"\w{32}"', '"id"', line).replace(" ", "") for line in (lines[1], lines[3])]
    said = [re.sub(r'"\w{32}"', '"id"', one.decode()).replace(" ", "") for one in answers]
    assert [one.strip() for one in said] == shown
