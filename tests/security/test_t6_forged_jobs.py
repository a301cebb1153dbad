"""T6: jobs forged, changed or moved by someone who can write to the server but has no key."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from freezegun import freeze_time
from hypothesis import example, given
from hypothesis import strategies as st

from jobq import current
from jobq.cli import main
from jobq.client.connection import connect
from jobq.config import CodecSettings, ServerSettings, parse_codec_keys, settings_from_env
from jobq.errors import CodecError, ConfigError, JobFailedError, JobqError
from jobq.jobs.codec import HARD_LIMIT, decode, encode
from jobq.jobs.executor import Executor, RunHooks
from jobq.jobs.registry import Registry, job
from jobq.jobs.signing import Seal, opened, seal_for, unverified
from jobq.queue import roles as rights
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message
from jobq.worker.done_calls import DoneCalls
from tests.security.conftest import NEW, OLD

#: What is checked here is the same on each server.
pytestmark = pytest.mark.one_server

ROOT = Path(__file__).resolve().parents[2]
CALL = encode("mail.send", ("a@b", 1), {"copies": 2})
MODES = pytest.mark.parametrize("mode", ["sign", "encrypt"])


@MODES
def test_sealed_call_opens_for_its_queue_and_mid_alone(ring, mode):
    seal = Seal(ring(mode))
    sealed = seal.close("low", "m", CALL)
    assert seal.open("low", "m", sealed) == CALL
    for queue, mid in (("high", "m"), ("low", "n"), ("lowm", ""), ("", "lowm"), ("lo", "wm")):
        with pytest.raises(CodecError, match=r"^bad s"):
            seal.open(queue, mid, sealed)


@MODES
def test_every_changed_byte_is_refused(ring, mode):
    seal = Seal(ring(mode))
    sealed = seal.close("low", "m", CALL)
    for at in range(len(sealed)):
        for change in range(1, 256):
            forged = bytearray(sealed)
            forged[at] ^= change
            with pytest.raises(CodecError):
                seal.open("low", "m", bytes(forged))
    for length in range(len(sealed)):
        with pytest.raises(CodecError):
            seal.open("low", "m", sealed[:length])
    with pytest.raises(CodecError):
        seal.open("low", "m", sealed + b" ")


@MODES
def test_keys_rotate(ring, mode):
    before, between, after = (Seal(ring(mode, *keys)) for keys in ((OLD,), (NEW, OLD), (NEW,)))
    old, new = before.close("low", "m", CALL), between.close("low", "m", CALL)
    assert between.open("low", "m", old) == between.open("low", "m", new) == CALL
    assert after.open("low", "m", new) == CALL
    with pytest.raises(CodecError, match=r"unknown key: .*2026-05"):
        after.open("low", "m", old)
    with pytest.raises(CodecError, match=r"unknown key: .*2026-11"):
        before.open("low", "m", new)


def test_signing_and_encrypting_processes_understand_each_other(ring):
    signs, encrypts = Seal(ring("sign")), Seal(ring("encrypt"))
    assert signs.open("low", "m", encrypts.close("low", "m", CALL)) == CALL
    assert encrypts.open("low", "m", signs.close("low", "m", CALL)) == CALL


def test_another_secret_under_the_same_id_opens_nothing(ring):
    for mode in ("sign", "encrypt"):
        stranger = Seal(ring(mode, (NEW[0], b"x" * 32)))
        with pytest.raises(CodecError, match="bad s"):
            Seal(ring(mode)).open("low", "m", stranger.close("low", "m", CALL))


def test_plain_calls_are_refused_unless_accepted_for_a_while(ring):
    with pytest.raises(CodecError, match="no signature"):
        Seal(ring()).open("low", "m", CALL)
    lenient = Seal(ring(accept_plain=True))
    assert lenient.open("low", "m", CALL) == CALL
    with pytest.raises(CodecError):
        lenient.open("low", "m", b"jobq-s2 x\n" + CALL)
    with pytest.raises(CodecError, match="has no keys; set JOBQ_CODEC_KEYS"):
        opened(None, "low", "m", Seal(ring()).close("low", "m", CALL))


def test_sealed_calls_differ_each_time_only_when_encrypted(ring):
    for mode, distinct in (("sign", 1), ("encrypt", 20)):
        seal = Seal(ring(mode))
        assert len({seal.close("low", "m", CALL) for _ in range(20)}) == distinct


@given(st.binary(max_size=300), st.sampled_from([b"", b"jobq-s1 ", b"jobq-e1 2026-11\n"]))
@example(b"jobq-e1 2026-11\n", b"")
@example(b"jobq-s1 2026-11 " + "ü".encode() * 32 + b"\n{}", b"")
@example(b"jobq-s1 2026-11 \n{}", b"")
@example(b"\xff" * (HARD_LIMIT + 1), b"")
def test_only_errors_of_jobq_escape_from_opening_and_decoding(content, start):
    seals = (None, *(Seal(CodecSettings(mode=m, keys=(NEW,))) for m in ("sign", "encrypt")))
    for seal in seals:
        try:
            decode(opened(seal, "low", "m", start + content))
        except JobqError:
            continue
        assert seal is None


@given(st.binary(max_size=2000))
def test_only_errors_of_jobq_escape_from_decoding_what_a_key_holder_sealed(content):
    seal = Seal(CodecSettings(keys=(NEW,), mode="encrypt"))
    inner = seal.open("low", "m", seal.close("low", "m", content))
    assert inner == content
    try:
        decode(inner)
    except JobqError:
        pass


@pytest.mark.parametrize("forge", ["plain", "changed", "moved", "unknown key", "garbage"])
@MODES
def test_forged_message_is_dead_at_once_and_never_runs(ring, registry, attempt, mode, forge):
    ran = []
    job(name="mail.send", registry=registry)(lambda *a, **k: ran.append(a))
    seal = Seal(ring(mode))
    sealed = seal.close("low", "m", CALL)
    assert attempt(sealed, seal=seal).outcome == "done"
    content = {
        "plain": CALL,
        "changed": sealed[:-1] + bytes([sealed[-1] ^ 1]),
        "moved": seal.close("low", "another", CALL),
        "unknown key": Seal(ring(mode, ("theirs", b"t" * 32))).close("low", "m", CALL),
        "garbage": b"jobq-s1 " + bytes(range(256)),
    }[forge]
    ended = attempt(content, seal=seal)
    assert ended.outcome == "dead"
    assert ended.reason.startswith(("no signature", "bad signature", "bad seal", "unknown key"))
    assert "a@b" not in ended.reason
    assert len(ran) == 1


def test_what_people_see_of_a_signed_call_is_marked_by_its_seal(ring):
    assert unverified(Seal(ring()).close("low", "m", CALL)) == CALL
    hidden = Seal(ring("encrypt")).close("low", "m", CALL)
    assert unverified(hidden) == hidden


@MODES
def test_calls_travel_sealed_and_revived_ones_still_open(server, redis, registry, ring, mode):
    ran = []

    @job(name="mail.send", registry=registry, queue="low")
    def send(to: str) -> None:
        ran.append(to)

    client = connect(settings=ServerSettings(url=server.url, codec=ring(mode)))
    queue, runner = Queue("low", client), Executor(registry, seal=seal_for(ring(mode)))
    receipts = [*send.options(client=client).enqueue_many([("a@b",), ("c@d",)])]
    receipts.append(send.options(client=client, mid="mine").enqueue("e@f"))
    stored = redis.hgetall("jobq:{low}:messages")
    assert {mid.decode() for mid in stored} == {receipt.mid for receipt in receipts}
    assert all(content.startswith(b"jobq-") for content in stored.values())
    assert mode == "sign" or not any(b"mail.send" in content for content in stored.values())
    taken = queue.dequeue(3).messages
    endings = [runner.run(runner.resolve("low", one)) for one in taken[:2]]
    queue.finish([*endings, replace_outcome(taken[2])])
    queue.admin.revive(*(dead.dead_id for dead in queue.admin.dead()))
    again = queue.dequeue(1).messages[0]
    assert runner.run(runner.resolve("low", again)).outcome == "done"
    assert sorted(ran) == ["a@b", "c@d", "e@f"]
    client.close()


def replace_outcome(message):
    from jobq.queue.types import Ending

    return Ending(mid=message.mid, token=message.token, outcome="dead", reason="by hand")


def test_settings_come_from_the_environment_and_never_show_a_secret():
    secret = base64.urlsafe_b64encode(b"\xfb" * 32).decode()
    env = {"JOBQ_CODEC_KEYS": f"new:{secret}, old:{base64.b64encode(b'o' * 32).decode()}"}
    codec = settings_from_env(env).codec
    assert codec == CodecSettings(keys=(("new", b"\xfb" * 32), ("old", b"o" * 32)))
    assert settings_from_env({}).codec is None
    strict = settings_from_env({**env, "JOBQ_CODEC": "encrypt", "JOBQ_CODEC_ACCEPT_PLAIN": "1"})
    assert (strict.codec.mode, strict.codec.accept_plain) == ("encrypt", True)
    assert secret not in repr(strict) and "\\xfb" not in repr(strict)
    assert "\\xfb" not in repr(Seal(strict.codec))


@pytest.mark.parametrize(
    "made",
    [
        lambda: settings_from_env({"JOBQ_CODEC": "sign"}),
        lambda: settings_from_env({"JOBQ_CODEC_KEYS": "no-colon"}),
        lambda: settings_from_env({"JOBQ_CODEC_KEYS": "id:SECRET!"}),
        lambda: settings_from_env({"JOBQ_CODEC_KEYS": "id:U0VDUkVU"}),
        lambda: CodecSettings(keys=(NEW, NEW)),
        lambda: CodecSettings(keys=(("a b", b"x" * 32),)),
        lambda: CodecSettings(keys=(NEW,), mode="rot13"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_are_refused_where_they_are_given_without_quoting_a_secret(made):
    with pytest.raises(ConfigError) as raised:
        made()
    assert "SECRET" not in str(raised.value) and "U0VD" not in str(raised.value)


def test_encrypting_without_the_package_is_refused_where_it_is_set(ring, monkeypatch):
    sealed = Seal(ring("encrypt")).close("low", "m", CALL)
    monkeypatch.setattr("jobq.config.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'cryptography>=\d+'"):
        replace(ring(), mode="encrypt")
    monkeypatch.setitem(
        __import__("sys").modules, "cryptography.hazmat.primitives.ciphers.aead", None
    )
    with pytest.raises(CodecError, match=r"pip install 'cryptography>=\d+'"):
        Seal(ring()).open("low", "m", sealed)


def test_a_seal_costs_microseconds(ring):
    assert parse_codec_keys("") == ()
    for mode in ("sign", "encrypt"):
        seal, content = Seal(ring(mode)), encode("mail.send", ("x" * 900,))
        began = time.thread_time_ns()
        for _ in range(1000):
            seal.open("low", "m", seal.close("low", "m", content))
        assert (time.thread_time_ns() - began) / 1000 < 200_000


@MODES
def test_worker_runs_sealed_calls_alone(server, redis, registry, ring, mode, tmp_path):
    (tmp_path / "mail.py").write_text(
        "from jobq import job\n@job(name='send', queue='low', result_ttl=60)\ndef send(to): return to\n"
    )
    send = job(name="send", registry=registry, queue="low", result_ttl=60)(lambda to: "")
    client = connect(settings=ServerSettings(url=server.url, codec=ring(mode, OLD)))
    queue = Queue("low", client)
    receipt = send.options(client=client).enqueue("a@b")
    queue.enqueue(encode("send", ("forged@b",)), mid="plain")
    queue.enqueue(redis.hget("jobq:{low}:messages", receipt.mid), mid="moved")
    secrets = ",".join(f"{i}:{base64.b64encode(secret).decode()}" for i, secret in (NEW, OLD))
    ran = subprocess.run(
        [sys.executable, "-m", "jobq", "worker", "--burst", "--processes", "1", "--import", "mail", "--queues", "low"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JOBQ_URL": server.url, "JOBQ_CODEC_KEYS": secrets},
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert receipt.result(timeout=60) == "a@b"
    reasons = {dead.mid: dead.reason for dead in queue.admin.dead()}
    assert set(reasons) == {"plain", "moved"}
    assert reasons["plain"].startswith("no signature") and reasons["moved"].startswith("bad s")
    assert "forged@b" not in ran.stderr + str(reasons)
    client.close()


# -- results, progress and reasons


PURPOSES = ("call", "result", "progress", "reason", "checkpoint")


@MODES
def test_sealed_thing_opens_for_its_purpose_alone(ring, mode):
    for made in PURPOSES:
        sealed = Seal(ring(mode), made).close("low", "m", CALL)
        for asked in PURPOSES:
            if asked == made:
                assert Seal(ring(mode), asked).open("low", "m", sealed) == CALL
            else:
                with pytest.raises(CodecError, match=r"^bad s"):
                    Seal(ring(mode), asked).open("low", "m", sealed)


@MODES
@given(text=st.text(min_size=1, max_size=300))
def test_text_is_read_back_and_no_change_of_it_is_taken_for_true(mode, text):
    seal = Seal(CodecSettings(mode=mode, keys=(NEW,)), "reason")
    sealed = seal.close_text("low", "m", text)
    assert seal.open_text("low", "m", sealed) == text
    for forged in (sealed[:-1], sealed + "x", sealed.replace("2026", "2027"), sealed[:20]):
        with pytest.raises(CodecError):
            seal.open_text("low", "m", forged)


class Sealed:
    """A producer with keys, and workers that share them."""

    def __init__(self, url, ring, mode, folder):
        self.url, self.folder = url, folder
        self.client = connect(settings=ServerSettings(url=url, codec=ring(mode, OLD)))
        self.queue = Queue("low", self.client)
        registry = Registry()
        options = {"registry": registry, "queue": "low", "result_ttl": 60, "retries": 0}
        self.work = job(name="work", **options)(lambda what: "").options(client=self.client)
        (folder / "done").touch()
        (folder / "jobs.py").write_text(
            "import os\nfrom jobq import current, job\n"
            "@job(name='work', queue='low', result_ttl=60, retries=0)\n"
            "def work(what):\n"
            "    current().progress(1.0, note='half of the TREASURE')\n"
            "    if what == 'die' and not os.path.exists('healed'): raise ValueError('no TREASURE')\n"
            "    open('done', 'a').write(what + '\\n')\n"
            "    return 'the TREASURE'\n"
        )
        self.env = {
            "PYTHONPATH": str(ROOT),
            "JOBQ_URL": url,
            "JOBQ_CODEC": mode,
            "JOBQ_CODEC_KEYS": ",".join(
                f"{i}:{base64.b64encode(s).decode()}" for i, s in (NEW, OLD)
            ),
        }

    def jobq(self, *words, **env):
        ran = subprocess.run(
            [sys.executable, "-m", "jobq", *words], cwd=self.folder, env={**os.environ, **self.env, **env},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def drain(self, **env):
        words = ("--burst", "--processes", "1", "--import", "jobs", "--queues", "low")
        self.jobq("worker", *words, **env)
        return (self.folder / "done").read_text().split()


@pytest.fixture
def sealed(server, redis, ring, tmp_path):
    """sealed("encrypt"): a queue whose calls are sealed."""
    made = []

    def begin(mode):
        made.append(Sealed(server.url, ring, mode, tmp_path))
        return made[-1]

    yield begin
    for one in made:
        one.client.close()


@MODES
def test_results_progress_and_reasons_are_sealed_where_calls_are(sealed, redis, mode):
    place = sealed(mode)
    receipt, died = place.work.enqueue("live"), place.work.enqueue("die")
    assert place.drain() == ["live"]

    assert receipt.result(timeout=60) == "the TREASURE"
    with pytest.raises(JobFailedError, match="no TREASURE"):
        died.result(timeout=60)
    kept = [
        redis.lindex(f"jobq:{{low}}:result:{receipt.mid}", 0),
        *redis.hvals("jobq:{low}:dead-messages"),
    ]
    mark = {"sign": b"jobq-s1 2026-05 ", "encrypt": b"jobq-e1 2026-05\n"}[mode]
    assert all(mark in one for one in kept)
    assert any(b"TREASURE" in one for one in kept) == (mode == "sign")
    assert "no TREASURE" in place.jobq("dead", "list")
    assert died.mid in place.jobq("dead", "list", "--where", "reason=*no TREASURE*")
    assert "set JOBQ_CODEC_KEYS" in place.jobq("dead", "list", JOBQ_CODEC="", JOBQ_CODEC_KEYS="")


@MODES
def test_progress_is_sealed_and_shown_to_those_with_keys(sealed, redis, ring, registry, mode):
    place = sealed(mode)
    told = []
    job(name="work", registry=registry)(
        lambda what: current().progress(1.0, note="at " + "ü" * 2_000)
    )
    hooks = RunHooks(report_progress=lambda *said: told.append(said) is None)
    runner = Executor(registry, seal=seal_for(ring(mode)), hooks=hooks)
    receipt = place.work.enqueue("live")
    (message,) = place.queue.dequeue(1).messages
    runner.run(runner.resolve("low", message))

    ((_, mid, token, text),) = told
    assert len(text.encode()) <= 8_192
    assert place.queue.progress(mid, token, text)
    assert redis.hget("jobq:{low}:progress", mid).startswith(b"jobq-")
    assert receipt.status().progress.startswith("1 at üü")
    assert "at üü" in place.jobq("status", mid)


@MODES
def test_checkpoint_is_sealed_and_a_forged_one_is_not_read(sealed, redis, ring, registry, mode):
    place, seen = sealed(mode), []

    def work(what: str) -> None:
        seen.append(current().checkpoint_value)
        current().checkpoint({"TREASURE": what})

    job(name="work", registry=registry)(work)
    hooks = RunHooks(checkpoint=lambda queue, *said: place.queue.checkpoint(*said))
    runner = Executor(registry, seal=seal_for(ring(mode)), hooks=hooks)
    place.work.enqueue("live")
    (message,) = place.queue.dequeue(1).messages
    for _ in range(2):
        assert runner.run(runner.resolve("low", message)).outcome == "done"
    assert seen == [None, {"TREASURE": "live"}]
    kept = redis.hget("jobq:{low}:progress", message.mid)
    assert kept.startswith(b"\x1ejobq-") and (b"TREASURE" in kept) == (mode == "sign")
    redis.hset("jobq:{low}:progress", message.mid, b'\x1e{"TREASURE":"forged"}')
    assert runner.run(runner.resolve("low", message)).outcome == "retry"
    assert len(seen) == 2


@MODES
def test_result_is_refused_when_somebody_without_a_key_wrote_it(sealed, redis, mode):
    place = sealed(mode)
    first, second = place.work.enqueue("one"), place.work.enqueue("two")
    place.drain()
    key = "jobq:{{low}}:result:{}".format
    others = redis.lindex(key(second.mid), 0)
    call = place.queue.admin.content("ready").entries
    assert call == []
    for forged in (
        b'{"ok":"forged"}',
        others,
        seal_for(place.client.settings.codec).close("low", first.mid, b'{"ok":1}'),
    ):
        redis.delete(key(first.mid))
        redis.rpush(key(first.mid), forged)
        with pytest.raises(CodecError):
            first.result(timeout=60)
    assert second.result(timeout=60) == "the TREASURE"


# -- replayed calls


def put_back(redis, mid, content):
    """Put a call back, like a user with the right to write to the queue's keys."""
    redis.hset("jobq:{low}:messages", mid, content)
    redis.rpush("jobq:{low}:ready", mid)


@MODES
def test_done_call_does_not_run_again_when_it_is_put_back(sealed, redis, mode):
    place = sealed(mode)
    receipt = place.work.enqueue("once")
    content = redis.hget("jobq:{low}:messages", receipt.mid)
    assert place.drain() == ["once"]
    for _ in range(2):
        place.queue.admin.collect()
        put_back(redis, receipt.mid, content)
        assert place.drain() == ["once"]
    assert {one.reason for one in place.queue.admin.dead()} == {
        "this sealed call had already run and was enqueued again by someone else"
    }
    # Enqueueing the same call again makes another call.
    place.work.options(mid=receipt.mid).enqueue("once")
    assert place.drain() == ["once", "once"]


def test_call_that_somebody_runs_can_be_handed_out_again_as_the_page_says(sealed, redis):
    place = sealed("sign")
    receipt = place.work.enqueue("twice")
    [held] = place.queue.dequeue().messages
    redis.rpush("jobq:{low}:ready", receipt.mid)
    assert place.drain() == ["twice"]
    # Only one of the two may end it.
    assert place.queue.finish([Ending(mid=held.mid, token=held.token)]).replies == ["stale"]
    page = (ROOT / "docs" / "operating" / "security.md").read_text()
    assert "run a waiting or running call again, even while the first run continues" in page


def test_dead_call_runs_when_it_is_revived(sealed):
    place = sealed("sign")
    place.work.enqueue("die")
    assert place.drain() == []
    (place.folder / "healed").touch()
    place.queue.admin.revive(*(one.dead_id for one in place.queue.admin.dead()))
    assert place.drain() == ["die"]


def test_call_is_dead_when_it_comes_after_its_time(ring, registry, attempt):
    job(name="mail.send", registry=registry)(lambda *args, **options: None)
    seal = Seal(ring("sign", valid_s=3_600))
    with freeze_time("2026-11-22T10:00:00Z"):
        sealed_call = seal.close_call("low", "m", CALL)
        late = seal.close_call("low", "m", CALL, due_ms=(time.time() + 86_400) * 1000)
    with freeze_time("2026-11-22T10:59:59Z"):
        assert attempt(sealed_call, seal=seal).outcome == "done"
    with freeze_time("2026-11-22T11:00:01Z"):
        ended = attempt(sealed_call, seal=seal)
        assert (ended.outcome, ended.reason) == (
            "dead",
            "the sealed call was valid until 2026-11-22T11:00:00.000Z; enqueue it again (JOBQ_CODEC_VALID)",
        )
        assert attempt(late, seal=seal).outcome == "done"


def test_call_is_valid_from_when_it_is_due(sealed, redis):
    place = sealed("sign")
    day_ms = 86_400_000
    now, valid_ms = time.time() * 1000, place.client.settings.codec.valid_s * 1000
    for options, due in (
        ({}, 0),
        ({"delay": 86_400}, day_ms),
        ({"at": now / 1000 + 86_400}, day_ms),
    ):
        receipt = place.work.options(**options).enqueue("x")
        content = redis.hget("jobq:{low}:messages", receipt.mid)
        until = decode(
            opened(seal_for(place.client.settings.codec), "low", receipt.mid, content)
        ).not_after
        assert now + due + valid_ms - 1_000 <= until <= now + due + valid_ms + 60_000


def test_record_of_done_calls_is_out_of_a_producers_reach_and_ends(sealed, redis):
    place = sealed("sign")
    place.work.enqueue("once")
    place.drain(JOBQ_CODEC_VALID="1h")
    key = "jobq:spent:{low}"
    assert redis.zcard(key) == 1
    assert 3_600 < redis.ttl(key) <= 7_200
    assert main(["acl"]) == 0
    for role, may in (("producer", False), ("worker", True)):
        redis.execute_command("ACL", "SETUSER", role, *rights.rights(role))
        for command in (
            ("ZADD", key, "1", "x"),
            ("ZMSCORE", key, "x"),
            ("ZREMRANGEBYSCORE", key, "-inf", "1"),
        ):
            reply = redis.execute_command("ACL", "DRYRUN", role, *command)
            assert (reply in (b"OK", True)) == may, (role, command)
        for command in (("DEL", key), ("RENAME", key, "jobq:{low}:x"), ("SET", key, "x")):
            assert redis.execute_command("ACL", "DRYRUN", role, *command) not in (b"OK", True)
        redis.execute_command("ACL", "DELUSER", role)


def test_record_of_done_calls_takes_at_most_120_bytes_a_call(client, redis, ring):
    seal = Seal(ring("sign"))
    spent, content = DoneCalls(client, seal), seal.close("low", "m", CALL)
    for first in range(0, 20_000, 1_000):
        numbers = range(first, first + 1_000)
        messages = [Message(f"m{n}", content, 1, 0, 1, "g", f"t{n}", 0) for n in numbers]
        spent.look("low", messages)
        assert not any(map(spent.holds, messages))
        endings = [Ending(mid=one.mid, token=one.token) for one in messages]
        spent.note("low", endings, ["ok"] * len(endings))
    key = "jobq:spent:{low}"
    assert redis.zcard(key) == 20_000
    assert redis.memory_usage(key, samples=0) / 20_000 <= 120


def test_worker_goes_on_when_the_record_of_done_calls_is_damaged(sealed, redis):
    place = sealed("sign")
    redis.set("jobq:spent:{low}", "no sorted set")
    place.work.enqueue("once")
    assert place.drain() == ["once"]


def test_worker_without_keys_runs_nothing_sealed(ring, registry, attempt):
    ran = []
    job(name="mail.send", registry=registry)(lambda *a, **k: ran.append(a))
    for mode in ("sign", "encrypt"):
        ended = attempt(Seal(ring(mode)).close("low", "m", CALL))
        assert ended.outcome == "dead" and "set JOBQ_CODEC_KEYS" in ended.reason
    assert not ran
