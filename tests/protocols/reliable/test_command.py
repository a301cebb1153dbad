"""`jobq reliable`: the module's arguments, and replies to the byte as redis-cli prints them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest
from click.testing import CliRunner

from jobq.cli import main
from jobq.cli.reliable import pop_words, quoted, shown
from jobq.client.keyscan import AT_ONCE
from jobq.errors import ConfigError
from jobq.protocols.reliable.keys import places
from jobq.protocols.reliable.listing import find_queues


@pytest.fixture
def cli(client, monkeypatch, tmp_path):
    """cli("pop", "q"): exit code, stdout and stderr."""
    for name in [name for name in os.environ if name.startswith("JOBQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        with CliRunner().isolation(env={"JOBQ_URL": client.url}) as (out, err, _):
            code = main(["reliable", *args])
        return code, out.getvalue().decode(), err.getvalue().decode()

    return run


@pytest.fixture
def redis_cli(fcall, server):
    """redis_cli("pop", ["q"], …): what the real redis-cli prints of the same call."""
    fcall("push", ["loaded"], "x")

    def run(verb: str, names: list[str], *args: Any) -> str:
        keys = [key for name in names for key in places("reliable", name)]
        line = [
            "redis-cli",
            "-s",
            server.socket,
            "--no-raw",
            "FCALL",
            f"reliable_{verb}",
            str(len(keys)),
            *keys,
        ]
        line += map(str, args)
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout

    return run


ODD = ["plain", "", 'quo"te\\', "a\nb\r\tc\a\b", "\x1b[2J\x00\x7f", "naïve 🐇", "'", "x" * 200]


@pytest.mark.needs("redis-cli")
def test_replies_are_printed_as_redis_cli_prints_them(rq, cli, redis_cli, at):
    rq.push("q", *ODD, *map(str, range(95)), now=at(0))
    assert cli("inspect", "q", "0", "200")[1] == redis_cli("inspect", ["q"], 0, 200)
    assert cli("inspect", "q", "-2", "2")[1] == redis_cli("inspect", ["q"], -2, 2)
    assert cli("inspect", "q", "PENDING", "0", "9")[1] == redis_cli(
        "inspect", ["q"], "PENDING", 0, 9
    )
    assert cli("info", "q")[1] == redis_cli("info", ["q"]) == (
        '1) "undelivered"\n2) (integer) 103\n3) "delivered"\n4) (integer) 0\n'
    )  # fmt: skip
    rq.push("r", *ODD, *map(str, range(95)), now=at(0))
    popped = cli("pop", "COUNT", "101", "q")[1]
    assert popped.replace('"q"', '"r"') == redis_cli("pop", ["r"], "COUNT", 101)
    assert cli("ack", "none", "1-1")[1] == redis_cli("ack", ["none"], "1-1") == "(nil)\n"
    assert cli("pop", "none")[1] == redis_cli("pop", ["none"]) == "(empty array)\n"
    code, out, _ = cli("inspect", "none", "0", "1")
    assert (code, out.split()[:2]) == (1, ["(error)", "EMPTYKEY:"])


def test_transcript_of_the_module_reads_the_same(rq, cli, at):
    high, low = at(0), at(9)
    rq.push(
        "myHighPriorityQueue", "This is the content of the job/message", "This is another", now=high
    )
    rq.push("myLowPriorityQueue", "This is a low priority job/message", now=low)
    code, out, _ = cli("pop", "COUNT", "10", "myHighPriorityQueue", "myLowPriorityQueue")
    assert (code, out) == (
        0,
        f"""\
1) 1) "myHighPriorityQueue"
   2) "{high}-1"
   3) "This is the content of the job/message"
2) 1) "myHighPriorityQueue"
   2) "{high}-2"
   3) "This is another"
3) 1) "myLowPriorityQueue"
   2) "{low}-1"
   3) "This is a low priority job/message"
""",
    )


def test_every_verb_by_hand(cli):
    code, out, _ = cli("push", "q", "a", "b", "c")
    ids = [line.split('"')[1] for line in out.splitlines()]
    assert code == 0 and out.startswith('1) "')
    assert cli("length", "q")[1] == "(integer) 3\n"
    assert f'"{ids[0]}"' in cli("pop", "q", "--token", "me")[1]
    assert cli("ack", "q", ids[0], "--token", "other")[1] == "(empty array)\n"
    assert cli("extend", "q", ids[0], "--token", "me")[1] == f'1) "{ids[0]}"\n'
    assert (
        cli("recover", "q", "5", "0", "--deliveries")[1]
        == f'1) 1) "{ids[0]}"\n   2) "a"\n   3) (integer) 2\n'
    )
    assert cli("nack", "q", ids[0], "--front")[1] == f'1) "{ids[0]}"\n'
    assert "(integer) 3" in cli("pop", "q", "--deliveries")[1]
    assert cli("configure", "q", "--max-deliveries", "3")[1] == "OK\n"
    assert cli("nack", "q", ids[0])[0] == 0
    assert f'"{ids[0]}"' in cli("inspect", "q", "DEAD", "0", "1")[1]
    assert '"max_deliveries"' in cli("info", "q", "--all")[1]
    assert cli("revive", "q", ids[0])[1] == f'1) "{ids[0]}"\n'
    assert cli("purge", "q", ids[0])[1] == "(empty array)\n"
    assert cli("clear", "q", "--yes")[1] == "(integer) 3\n"
    assert cli("delete", "q", "--yes")[1] == "(integer) 0\n"
    assert cli("clear", "q", "--yes")[1] == "(nil)\n"


def test_released_message_is_first_again_and_its_delivery_does_not_count(cli):
    ids = re.findall(r"\d+-\d+", cli("push", "q", "a", "b")[1])
    cli("pop", "--token", "me", "q")
    assert cli("release", "q", ids[0], "--token", "you")[1] == "(empty array)\n"
    assert cli("release", "q", ids[0], "--token", "me")[1] == f'1) "{ids[0]}"\n'
    assert json.loads(cli("pop", "q", "--json")[1])[0]["deliveries"] == 1
    assert cli("release", "unknown", ids[0])[1] == "(nil)\n"


def test_pop_waits_and_says_nil(cli):
    assert cli("pop", "BLOCK", "20", "q")[:2] == (0, "(nil)\n")
    assert cli("recover", "q", "1", "5", "--block", "20")[:2] == (0, "(nil)\n")


def test_pop_recovers_when_asked(rq, cli):
    rq.push("q", "a")
    rq.pop(1, 0, "q")
    assert '"a"' in cli("pop", "q", "--recover", "0")[1]


@pytest.mark.parametrize(
    ("words", "read"),
    [("q", (1, 0, ["q"])), ("COUNT 5 q r", (5, 0, ["q", "r"])), ("count 5 block -1 q", (5, -1, ["q"])),
     ("BLOCK 100 COUNT 5 q", (5, 100, ["q"])), ("COUNT 1 COUNT", (1, 0, ["COUNT"])),
     ("q COUNT", (1, 0, ["q", "COUNT"]))],
)  # fmt: skip
def test_words_of_pop_are_read_as_typed(words, read):
    count, block, keys = pop_words(words.split())
    assert (count, block, list(keys)) == read


@pytest.mark.parametrize(
    "words", ["COUNT abc q", "COUNT", "BLOCK 0.5 q", "COUNT -1 q", "BLOCK q", "count"]
)
def test_word_in_the_place_of_an_option_is_one(words):
    with pytest.raises(ConfigError, match="must be followed by a whole number"):
        pop_words(words.split())


@pytest.mark.parametrize(
    "line", ["pop", "pop COUNT x q", "pop --bogus q", "pop q --token", "push q", "ack q", "ack q garbage", "recover q",
             "recover q x 1", "recover q 1 -1", "recover q -1 1", "inspect q", "inspect q 0", "inspect q x 1",
             "inspect q 0 0", "inspect q 0 1 2", "inspect --bogus q 0 1", "push {q a",
             "configure q", "configure q --max-deliveries -1"],
)  # fmt: skip
def test_wrong_usage_ends_with_its_code(cli, line):
    code, out, err = cli(*line.split())
    assert (code, out) == (2, "") and err


def test_json_names_the_columns(cli, rq, at):
    rq.push("q", "a", b"\xff", now=at(0))
    popped = json.loads(cli("pop", "COUNT", "2", "q", "--json")[1])
    assert popped[0] == {"key": "q", "id": f"{at(0)}-1", "content": "a", "deliveries": 1}
    assert popped[1]["content_base64"] == "/w=="
    assert json.loads(cli("info", "q", "--json")[1]) == {"undelivered": 0, "delivered": 2}
    assert json.loads(cli("inspect", "q", "PENDING", "0", "1", "--json")[1])[0]["deliveries"] == 1
    assert json.loads(cli("ack", "q", f"{at(0)}-1", "--json")[1]) == [f"{at(0)}-1"]
    assert json.loads(cli("ack", "none", "1-1", "--json")[1]) is None
    assert "EMPTYKEY" in json.loads(cli("info", "none", "--json")[1])["error"]


def test_push_takes_the_bytes_that_were_typed(cli, rq):
    assert cli("push", "q", os.fsdecode(b"\xff\xfe"), "gr\u00fcezi")[0] == 0
    assert [one.content for one in rq.pop(2, 0, "q")] == [b"\xff\xfe", "grüezi".encode()]


def test_other_first_part_of_keys_is_another_world(cli, redis):
    cli("push", "q", "a", "--ns", "other")
    assert redis.exists("other:{q}:messages")
    assert cli("length", "q")[1] == "(integer) 0\n"
    assert cli("push", "q", "a", "--ns", "a:b")[0] == 2


def test_nested_arrays_are_aligned_by_the_width_of_their_numbers():
    assert (
        shown([[1, [b"a", None]], []])
        == '1) 1) (integer) 1\n   2) 1) "a"\n      2) (nil)\n2) (empty array)'
    )
    assert shown(list(range(10))).splitlines()[0] == " 1) (integer) 0"
    assert quoted(b"\x1b") == '"\\x1b"'


def test_list_finds_queues_by_their_keys(cli, rq, redis):
    assert cli("list")[0] == 0 and "no queues with --ns" in cli("list")[2]
    rq.push("mails", "a", "b")
    rq.push("{shop}low", "c")
    rq.pop(1, 0, "mails")
    redis.hset("reliable:{strange queue}:meta", "last_id", "1-1")
    redis.set("reliable:{damaged}:meta", "x")
    code, out, err = cli("list", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["key"] for row in rows] == ["mails", "{shop}low"]
    assert rows[0] == {
        "key": "mails", "undelivered": 1, "delivered": 1, "dead": 0, "promised": 0, "max_deliveries": 0,
        "last_id": rows[0]["last_id"],
    }  # fmt: skip
    assert code != 0 and "key damaged" in err and "strange" not in err
    assert cli("list", "--ns", "other")[1] == ""


def test_list_says_when_it_looked_at_a_part(client, redis, rq):
    for number in range(50):
        rq.push(f"q{number}", "x")
    assert len(find_queues(client).names) == 50 and find_queues(client).whole
    for number in range(3 * AT_ONCE):
        redis.set(f"other:{number}", "x")
    part = find_queues(client, most=AT_ONCE)
    assert not part.whole and part.looked_at == AT_ONCE and len(part.names) < 50
