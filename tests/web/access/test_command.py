"""Section 11.1 and 11.3 on the command line: `jobq web` and the commands for its users."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from jobq.cli import exits, main
from jobq.web.access import passwords
from jobq.web.access.users import UsersFile
from tests.cli.conftest import bare as bare
from tests.cli.conftest import line as line

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bind", "0.0.0.0:0"], "use --users FILE"),
        (["--bind", "[::]:0", "--host", "jobs.example.com"], "use --users FILE"),
        (["--bind", "192.0.2.1:0", "--no-auth"], "open to every host"),
        (["--bind", "192.0.2.1:0", "--users", "missing"], "unencrypted"),
        (["--url", "unix:///none", "--users", "missing"], "jobq web user add"),
        (["--tls-cert", "/dev/null"], "both --tls-cert and --tls-key"),
        (["--auth-header", "X-User"], "needs --trusted-proxy"),
        (["--trace-url", "javascript:{trace_id}"], "not a link"),
    ],
)  # fmt: skip
def test_it_does_not_start_open(line, words, says):
    ended = line("web", *words)
    assert ended.code == exits.USAGE
    assert says in ended.err


def test_users_and_tokens_are_added_listed_and_removed(line, monkeypatch):
    monkeypatch.setattr(passwords, "LOG2_N", 9)
    where = ["--users", "users.json"]
    assert line("web", "user", "add", "anna", "--role", "operate", "--arguments", *where,
                given="correct horse\n").code == 0  # fmt: skip
    assert line("web", "user", "add", "ben", "--no-password", *where).code == 0
    known = UsersFile(Path("users.json"))
    assert known.check_password("anna", "correct horse").identity.arguments
    assert line("web", "user", "add", "anna", *where, given="another one\n").code == exits.USAGE
    assert line("web", "user", "add", "eve", *where, given="short\n").code == exits.USAGE
    assert line("web", "user", "add", "eve", *where, given="").code == exits.USAGE
    [made] = line("web", "token", "add", "ci", "--expires", "90d", "--json", *where).records
    assert known.check_token(made["token"], 0).name == "ci"
    listed = line("web", "user", "list", "--json", *where).records
    assert [(one["kind"], one["name"], one["role"], one["login"]) for one in listed] == [
        ("user", "anna", "operate", "password"), ("user", "ben", "read", "proxy"), ("token", "ci", "read", "token"),
    ]  # fmt: skip
    assert made["token"] not in line("web", "user", "list", *where).out
    assert [line("web", *words, *where).code for words in (
        ("user", "remove", "anna"), ("user", "remove", "anna"), ("token", "remove", "ci"), ("token", "remove", "ci"),
    )] == [0, exits.NO, 0, exits.NO]  # fmt: skip
    assert line("web", "user", "list", env={"JOBQ_WEB_USERS": "users.json"}).code == 0


def test_the_link_works_once_and_its_get_only_shows_a_button(server, redis, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-m", "jobq", "web", "--bind", "127.0.0.1:0", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JOBQ_URL": server.url},
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            link = json.loads(process.stdout.readline())["address"]
            site, _, token = re.fullmatch(
                r"(http://127\.0\.0\.1:\d+)(/login\?token=)(.{43})", link
            ).groups()
            with httpx.Client(base_url=site, headers={"Sec-Fetch-Site": "same-origin"}) as browser:
                assert browser.get("/").headers["location"] == "/login?next=%2F"
                for _ in range(2):
                    assert "Log in</button>" in browser.get(link).text
                assert not browser.cookies and redis.keys("jobq:web:*") == []
                # Servers may only open a chat's links with a GET.
                assert browser.post("/login", data={"token": token}).status_code == 303
                assert browser.get("/").status_code == 200
                [cookie] = browser.cookies.jar
                assert cookie.name == f"jobq-{site.rpartition(':')[2]}"
                browser.cookies.clear()
                assert browser.post("/login", data={"token": token}).status_code == 403
                assert browser.get("/").status_code == 303
                assert browser.get("/", headers={"Host": "evil.example"}).status_code == 421
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    assert process.returncode in (0, 130)


def test_main_is_not_called_for_the_verbs(capsys):
    assert main(["web", "user"]) == exits.USAGE
    assert "Add, list and remove users" in capsys.readouterr().err
