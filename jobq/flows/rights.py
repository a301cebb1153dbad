"""Proof that the author of a flow was allowed to write to the queues of its steps.

A drainer with wide rights enqueues the steps of flows, and all users of flows may write the flows' keys. So each stored
step, and each chunk of stored items, has a proof, made with a secret of the queue where it will run. The server gives
that secret only to users who may write to the queue. The drainer checks the proof before it enqueues a step; a step
without a valid proof fails.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from jobq.client.connection import Client
from jobq.client.numbered_calls import is_denied
from jobq.client.pipelining import Read, read_together
from jobq.errors import ConfigError, JobqError, ScriptError
from jobq.flows.types import StoredStep, TodoItem
from jobq.queue import keys

#: Secrets by queue for each client. If a proof doesn't match, the secret is read again, because it may have changed.
_known: WeakKeyDictionary[Client, dict[str, bytes]] = WeakKeyDictionary()
_PROVEN = re.compile(rb'(\{.*),?"proof":"([0-9a-f]{64})"\}', re.DOTALL)
_NO_OPTIONS = b"{}"


def refresh(client: Client, queues: Iterable[str]) -> None:
    """Read the secrets of these queues, and create missing secrets. Raises ScriptError without the right to do that."""
    _read(client, list(dict.fromkeys(queues)), may_make=True)


def proven(client: Client, flow: str, steps: Sequence[StoredStep]) -> list[StoredStep]:
    """Return the steps. Each step's options now prove that this user may write to the step's queue."""
    known = _secrets(client, {step.queue for step in steps if step.queue})
    return [
        _with_proof(step, known[step.queue], flow) if step.queue in known else step
        for step in steps
    ]


def proof_of_items(
    client: Client, flow: str, step: str, queue: str, chunk: int, contents: Sequence[bytes]
) -> bytes:
    """Return the proof that a chunk's author may write to the queue. The proof is stored with the chunk."""
    secret = _secrets(client, [queue])[queue]
    return _made(secret, "items", flow, step, str(chunk), *contents)


def check_step(client: Client, flow: str, item: TodoItem) -> None:
    """Raise ConfigError unless the item proves that the step's author may write to the step's queue."""
    match = _PROVEN.fullmatch(item.options)
    start, given = (match[1].removesuffix(b","), match[2]) if match else (b"", b"")
    parts = _parts(flow, item.step, item.kind, item.queue, item.source, start + b"}", item.call)
    _check(client, item.queue, given, parts, f"step {item.step}")


def check_items(
    client: Client, flow: str, step: str, queue: str, chunk: int, stored: Sequence[bytes]
) -> Sequence[bytes]:
    """Check the proof of a stored chunk, and return the chunk's items. Raises ConfigError if the proof is wrong."""
    if not stored:
        return stored
    given, *contents = stored
    parts: list[str | bytes] = ["items", flow, step, str(chunk), *contents]
    _check(client, queue, given, parts, f"items of map {step}")
    return contents


def _check(
    client: Client, queue: str, given: bytes, parts: Sequence[str | bytes], what: str
) -> None:
    for _ in range(2):
        secret = _known.get(client, {}).get(queue)
        if secret and hmac.compare_digest(_made(secret, *parts), given):
            return
        _read(client, [queue], may_make=False)
    raise ConfigError(
        f"{what} must not run in queue {queue}: nothing proves that its author may write to that queue"
    )


def _with_proof(step: StoredStep, secret: bytes, flow: str) -> StoredStep:
    options = step.options
    if not (options.startswith(b"{") and options.endswith(b"}")):
        return step
    proof = _made(
        secret, *_parts(flow, step.name, step.kind, step.queue, step.source, options, step.call)
    )
    comma = b"" if options == _NO_OPTIONS else b","
    return step._replace(options=b'%b%b"proof":"%b"}' % (options[:-1], comma, proof))


def _parts(
    flow: str, name: str, kind: str, queue: str, source: str, options: bytes, call: bytes
) -> tuple[str | bytes, ...]:
    return "step", flow, name, kind, queue, source, options, call


def _made(secret: bytes, *parts: str | bytes) -> bytes:
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    text = b"".join(len(part).to_bytes(8, "big") + part for part in raw)
    return hmac.digest(secret, text, "sha256").hex().encode()


def _secrets(client: Client, queues: Iterable[str]) -> dict[str, bytes]:
    known = _known.setdefault(client, {})
    if missing := [queue for queue in queues if queue not in known]:
        _read(client, missing, may_make=True)
    return known


def _read(client: Client, queues: Sequence[str], *, may_make: bool) -> None:
    known = _known.setdefault(client, {})
    where = [keys.flow_secret(client.namespace, queue) for queue in queues]
    for queue, key, reply in zip(
        queues,
        where,
        read_together(client, [Read(flow_secret, ("GET", flow_secret)) for flow_secret in where]),
        strict=True,
    ):
        secret = reply
        try:
            if isinstance(reply, JobqError):
                raise reply
            if secret is None and may_make:
                client.command("SET", key, secrets.token_bytes(32), "NX")
                secret = client.command("GET", key)
        except ScriptError as error:
            if not is_denied(error):
                raise
            raise ScriptError(
                f"this user may not write to queue {queue}, so the user's flows can't run steps there ({error}); "
                "see jobq acl --queues"
            ) from error
        if isinstance(secret, bytes):
            known[queue] = secret
        else:
            known.pop(queue, None)
