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
from hypothesis import example, given
from hypothesis import strategies as st

from jobq.config import CodecSettings, ServerSettings, parse_codec_keys, settings_from_env
from jobq.engine.connection import connect
from jobq.engine.queue import Queue
from jobq.errors import CodecError, ConfigError, JobqError
from jobq.jobs.codec import HARD_LIMIT, decode, encode
from jobq.jobs.executor import Executor
from jobq.jobs.job import job
from jobq.jobs.seal import Seal, opened, seal_for, unverified
from tests.security.conftest import NEW, OLD

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
    receipts = send.options(client=client).enqueue_many([("a@b",), ("c@d",)])
    receipts.append(send.options(client=client, mid="mine").enqueue("e@f"))
    stored = redis.hgetall("jobq:{low}:messages")
    assert {mid.decode() for mid in stored} == {receipt.mid for receipt in receipts}
    assert all(content.startswith(b"jobq-") for content in stored.values())
    assert mode == "sign" or not any(b"mail.send" in content for content in stored.values())
    taken = queue.dequeue(3).messages
    endings = [runner.run(runner.resolve("low", one)) for one in taken[:2]]
    queue.finish([*endings, replace_outcome(taken[2])])
    queue.revive(*(dead.dead_id for dead in queue.dead()))
    again = queue.dequeue(1).messages[0]
    assert runner.run(runner.resolve("low", again)).outcome == "done"
    assert sorted(ran) == ["a@b", "c@d", "e@f"]
    client.close()


def replace_outcome(message):
    from jobq.engine.message import Ending

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
    with pytest.raises(ConfigError, match=r"pip install 'jobq\[crypto\]'"):
        replace(ring(), mode="encrypt")
    monkeypatch.setitem(
        __import__("sys").modules, "cryptography.hazmat.primitives.ciphers.aead", None
    )
    with pytest.raises(CodecError, match=r"pip install 'jobq\[crypto\]'"):
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
    assert receipt.result(timeout=5) == "a@b"
    reasons = {dead.mid: dead.reason for dead in queue.dead()}
    assert set(reasons) == {"plain", "moved"}
    assert reasons["plain"].startswith("no signature") and reasons["moved"].startswith("bad s")
    assert "forged@b" not in ran.stderr + str(reasons)
    client.close()


def test_worker_without_keys_runs_nothing_sealed(ring, registry, attempt):
    ran = []
    job(name="mail.send", registry=registry)(lambda *a, **k: ran.append(a))
    for mode in ("sign", "encrypt"):
        ended = attempt(Seal(ring(mode)).close("low", "m", CALL))
        assert ended.outcome == "dead" and "set JOBQ_CODEC_KEYS" in ended.reason
    assert not ran
