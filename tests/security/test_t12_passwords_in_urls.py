"""T12: no text that jobq makes has a password of a URL in it, whatever characters the password has."""

from __future__ import annotations

import ast
import io
import logging
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import jobq
from bench import sources
from jobq.client.address import connection_options, parse
from jobq.client.connection import connect
from jobq.config import CodecSettings, ServerSettings
from jobq.errors import ConfigError, JobqError, UnavailableError, masked, masked_text
from jobq.jobs.failure import reason, summary
from jobq.observe.log import JsonFormatter, TextFormatter
from jobq.queue.doctor import diagnose, facts

#: What is checked here is the same on each server.
pytestmark = pytest.mark.one_server

PACKAGE = Path(jobq.__file__).parent
#: Of openssl rand -base64, and with every character that means something in a URL.
PASSWORDS = (
    "hunter2hunter2", "f8Vw/Gq1+SZkq0y7/3XnEw==", "12/cretcret", "se/cret:cret", "se:cret@cret", "se#cretcret",
    "se?cretcret", "se[cret]cret", "se%41cret", "@@cretcret", "se//cret@cret/0", "x@y:1/secret?a=secret",
    "cret&dbcret", "12/cret cret\"'\\cret",
)  # fmt: skip
SHAPES = (
    "redis://:{}@queue.example:6379/0", "redis://user:{}@queue.example", "rediss://user:{}@10.0.0.1:1/2?protocol=2",
    "unix://user:{}@/run/redis.sock", "redis+sentinel://:{}@a:1,b:2/main/0", "rediss+cluster://u:{}@a:1,b:2",
    "redis://queue.example/0?password={}", "redis://queue.example?db=1&ssl_password={}&protocol=2",
    "redis+sentinel://a/main?sentinel_password={}", "redis://queue.example/0?p%61ssword={}",
    "http://u:{}@h",
)  # fmt: skip


def pieces(password: str) -> set[str]:
    """Return the parts of a password that reveal it."""
    return {piece for piece in re.split(r"[/:@#?&=\[\] \"'\\]|%41", password) if len(piece) > 2} - {
        "password"
    }


def shown(text: str, password: str) -> list[str]:
    """The pieces of the password that are in a text."""
    return [piece for piece in pieces(password) if piece in text]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("password", PASSWORDS)
def test_password_is_in_no_text_on_a_url(shape, password):
    url = shape.format(password)
    assert not shown(masked(url), password)
    assert not shown(repr(ServerSettings(url=url)), password)
    if " " not in password:
        said = f"no answer from '{url}' ({url}); set JOBQ_URL={url}."
        assert not shown(masked_text(said), password)
        assert not shown(str(JobqError(said)), password)
    try:
        address = parse(url)
        assert not shown(repr(address), password)
        connection_options(address.plain)
    except ConfigError:
        # Also what led to it, which a traceback quotes.
        assert not shown(traceback.format_exc(), password)


@pytest.mark.parametrize("url", ["redis:/:{}@h", ":{}@h:6379", "redis://u:{}", "redis://:{}"])
def test_password_is_not_quoted_when_the_url_lacks_its_scheme_or_host(url):
    url = url.format("secret/q+1=")
    with pytest.raises(ConfigError) as refused:
        connect(url)
    assert "secret" not in "".join(traceback.format_exception(refused.value))


@given(
    st.text(st.sampled_from("/:@#?&=+%[]a1 \"'\\;"), max_size=12),
    st.sampled_from([shape for shape in SHAPES if "{}@" in shape]),
)
@example("@", SHAPES[0])
def test_nothing_before_the_last_at_is_shown(noise, shape):
    password = f"secret{noise}secret"
    assert "secret" not in masked(shape.format(password))
    try:
        parse(shape.format(password))
    except ConfigError:
        assert "secret" not in traceback.format_exc()


@pytest.mark.parametrize("password", ["se/cret", "se?cret", "se#cret", "se[cret"])
def test_url_is_refused_with_the_remedy_when_its_password_is_not_quoted(password):
    with pytest.raises(ConfigError, match=r"encode / as %2F, [?] as %3F, # as %23"):
        connect(f"redis://:{password}@queue.example")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://queue.example:6379/0", "redis://queue.example:6379/0"),
        ("redis://u:p@queue.example:6379/0?protocol=2", "redis://***@queue.example:6379/0?protocol=2"),
        ("redis://u@queue.example", "redis://***@queue.example"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("redis+cluster://a:1,[::1]:2,b", "redis+cluster://a:1,[::1]:2,b"),
        ("redis+sentinel://a:1,b/main/2", "redis+sentinel://a:1,b/main/2"),
        ("redis://a?db=1&password=p", "redis://a?db=1&password=***"),
        ("unix:///tmp/a@b.sock", "unix://***@b.sock"),
        ("unix:///tmp/a:b.sock?db=1", "unix:///tmp/a:b.sock?db=1"),
        ("redis://:6379/0", "redis://:6379/0"),
        ("s3://bucket/folder", "s3://bucket/folder"),
    ],
)  # fmt: skip
def test_what_is_no_secret_is_shown(url, says):
    assert masked(url) == says
    assert masked_text(f"at {url}, again") == f"at {says}, again"
    assert masked(masked(url)) == masked(url)


def test_error_without_a_url_is_as_it_was_written():
    for text in (
        "mail to a@b.c",
        "password=x in no URL",
        "set JOBQ_URL=redis://…",
        "ERR @user_script:3",
    ):
        assert str(JobqError(text)) == text


def test_client_says_no_password_when_it_is_shown_and_when_nobody_answers(tmp_path):
    client = connect(
        settings=ServerSettings(
            url=f"unix://user:se%2Fcret-piece@{tmp_path}/none", patience_s=0,
            codec=CodecSettings(keys=(("k", b"cret-piece" * 4),)),
        )
    )  # fmt: skip
    with pytest.raises(UnavailableError) as away:
        client.command("PING")
    said = "".join(traceback.format_exception(away.value)) + repr(client) + repr(client.settings)
    assert "cret-piece" not in said
    assert "***@" in said


def test_doctor_says_no_password(client, redis, server):
    client.command("ACL", "SETUSER", "tester", "on", ">cret-piece", "~*", "&*", "+@all")
    with_one = connect(f"unix://tester:cret-piece@{server.socket}")
    found = facts(with_one)
    with_one.close()
    assert found.user == "tester"
    assert "cret-piece" not in repr(found) + repr(diagnose(found))


@pytest.mark.parametrize(
    "args",
    [
        ("queues", "--url", "redis://:se/cret-piece@h"),
        ("check", "doctor", "--url", "redis://u:cret-piece@127.0.0.1:1"),
        ("worker", "--url", "redis://u:cret-piece@127.0.0.1:1", "--burst", "--import", "jobq.chaos.workload"),
        ("worker", "--url", "http://u:cret-piece@h", "--import", "jobq.chaos.workload"),
        ("queues", "redis://u:cret-piece@h"),
        ("rsmq", "-r", "redis+sentinel://:cret-piece@h", "queue", "list"),
        ("chaos", "--url", "redis://u:cret-piece@127.0.0.1:1", "--fault", "kill-server"),
        ("queues", "--every", "redis://u:cret-piece@h"),
    ],
)  # fmt: skip
def test_command_says_no_password_when_it_fails(args, tmp_path):
    root = str(PACKAGE.parent)
    ended = subprocess.run(
        [sys.executable, "-m", "jobq", *args], capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root, "JOBQ_PATIENCE": "0"},
    )  # fmt: skip
    assert ended.returncode != 0
    assert "cret-piece" not in ended.stdout + ended.stderr
    assert ended.stderr


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_log_line_of_jobq_has_no_password_and_one_of_the_application_is_its_own(formatter):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    try:
        raise ValueError("redis://u:cret-piece@h")
    except ValueError:
        trouble = sys.exc_info()
    for name in ("jobq.worker", "app"):
        handler.handle(logging.LogRecord(name, 40, "f", 1, "at %s", ("redis://u:se@cret-two@h",), trouble))  # fmt: skip
    ours, apps = stream.getvalue()[: stream.tell() // 2], stream.getvalue()[stream.tell() // 2 :]
    assert "cret" not in ours and "redis://***@h" in ours
    assert "cret-two" in apps and "cret-piece" in apps


def test_reason_of_a_dead_message_has_no_password():
    try:
        raise ConnectionError("no answer from postgres://u:cret-piece@db/app")
    except ConnectionError as error:
        said = reason(error) + summary(error)
    assert "cret-piece" not in said
    assert "postgres://***@db/app" in said


def urls_in_texts(path: Path) -> list[str]:
    """Expressions with `url` in their last name in a text, a log line or a print."""
    found = []
    for node in sources.nodes(path, ast.FormattedValue, ast.BinOp, ast.Call):
        values: list[ast.expr] = []
        if isinstance(node, ast.FormattedValue):
            values = [node.value]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
            values = [node.left, node.right]
            values += node.right.elts if isinstance(node.right, ast.Tuple) else []
        elif isinstance(node, ast.Call) and name_of(node.func) in PRINTS:
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            for each in list(values):
                values += each.values if isinstance(each, ast.Dict) else []
        found += [ast.unparse(value) for value in values if is_url(value)]
    return found


PRINTS = {
    "debug", "info", "warning", "error", "exception", "critical", "log", "echo", "secho", "print", "say",
    "say_all", "note", "format", "str", "repr", "write", "Finding", "confirmed", "join",
}  # fmt: skip


def name_of(node: ast.expr) -> str:
    """`error` of `logger.error`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_url(node: ast.expr) -> bool:
    """Whether it is named as one; a call is what it returns, and `masked` returns none."""
    if isinstance(node, ast.Call):
        node = node.func
    return bool(re.search(r"(?:^|_)urls?$", name_of(node)))


def test_every_url_in_a_text_is_masked():
    bare = {
        f"{path.relative_to(PACKAGE)}: {text}"
        for path in PACKAGE.rglob("*.py")
        for text in urls_in_texts(path)
    }
    assert not bare, "\n".join(sorted(bare))


@pytest.mark.parametrize(
    "line",
    ['f"no answer from {self.url}"', 'f"{client.url!r}"', 'logger.info("at %s", url)', '"at %s" % ruby_url',
     '"at " + url', 'click.echo(session.url)', 'session.say({"url": client.url}, "")', '"{}".format(client.url)'],
)  # fmt: skip
def test_url_that_is_not_masked_is_found(tmp_path, line):
    (tmp_path / "code.py").write_text(line)
    assert urls_in_texts(tmp_path / "code.py")
    line = re.sub(r"(self|client|session)\.url|\b(ruby_)?url\b(?!\")", "masked(url)", line)
    (tmp_path / "masked.py").write_text(line)
    assert not urls_in_texts(tmp_path / "masked.py")
