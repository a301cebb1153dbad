"""Converts Ruby jobs to messages of jobq, without a server or a clock.

A Sidekiq job's jid becomes the mid. The header `ruby-tags` stores the job's tags as JSON, and the header `ruby-fields`
stores the other fields, for Ruby's web interface. An invalid job becomes a message that contains the error and the
original bytes. Workers dead-letter this message. The original bytes alone never become a message, because they might be
a jobq call, which Ruby isn't allowed to enqueue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from jobq.errors import CodecError, ConfigError
from jobq.jobs.codec import (
    HARD_LIMIT,
    MAX_NAME,
    Overrides,
    decode,
    decode_any,
    depth,
    encode,
    read_refusal,
    refusal,
)
from jobq.protocols.ruby.activejob import unwrapped
from jobq.protocols.ruby.key_names import RubyQueueName, checked_queue

#: Sidekiq's default, for jobs with `retry: true`.
RETRIES = 25
MAX_RETRIES = 10_000
ORIGIN, FIELDS, TAGS = "ruby", "ruby-fields", "ruby-tags"
#: Maximum nesting depth of Ruby's JSON.
DEEPEST = 100
#: Maximum size of a job to parse; longer jobs can't become messages. Parsed JSON takes many times its bytes, and if
#: that killed a process, the next process would claim the same job.
MAX_BYTES = 8 * 1024 * 1024
#: The class name with which Ruby shows an unreadable job, whose only argument is the pushed text.
UNREADABLE = "(unreadable job)"
_TRACES = ("sentry-trace", "baggage", "traceparent", "tracestate")
_MS = 100_000_000_000
_write = msgspec.json.Encoder().encode


class Arrival(NamedTuple):
    """The message for a claimed job. For an invalid job, `fault` is the reason, and workers dead-letter the message.

    Attributes:
        key: The message's key; '' without a key.
        caution: Warning about an unsupported feature of Ruby; else ''.
    """

    mid: str
    content: bytes
    fault: str = ""
    key: str = ""
    ordered: bool = False
    caution: str = ""


def read_job(
    ruby_queue: RubyQueueName, raw: bytes, default_mid: str, names: Mapping[str, str]
) -> Arrival:
    """Return the message in `raw`, which may be any bytes.

    Args:
        default_mid: The mid of a job without a jid.
        names: Maps names of Ruby classes to names of jobs.
    """
    mid = default_mid
    try:
        fields = read_fields(raw)
        mid = _mid(fields.get("jid"), default_mid)
        if fields.get("class") == UNREADABLE:
            raw = _shown_before(fields.get("args"))
            fields = read_fields(raw)
        return Arrival(mid, _message(ruby_queue, fields, names), caution=_caution(fields))
    except (CodecError, ConfigError) as error:
        fault = str(error)
    except Exception as error:  # one bad job must not stop the others
        fault = f"the job can't be read: {error!r:.200}"
    return refused(ruby_queue, raw, mid, fault)


def refused(ruby_queue: RubyQueueName, raw: bytes, mid: str, fault: str) -> Arrival:
    """Return the message for an invalid job. Workers dead-letter this message."""
    return Arrival(mid, refusal(fault, raw, {ORIGIN: _named(ruby_queue)}), fault)


def read_fields(raw: bytes) -> dict[str, Any]:
    """Return the fields of a job; raise CodecError if it can't be read."""
    if len(raw) > MAX_BYTES:
        raise CodecError(f"the job has {len(raw):,} bytes; at most {MAX_BYTES:,} are allowed")
    fields = decode_any(raw)
    if not isinstance(fields, dict):
        raise CodecError("the job is not a JSON object")
    if depth(fields, DEEPEST) > DEEPEST:
        raise CodecError(f"the job nests deeper than {DEEPEST} levels, which is Ruby's own limit")
    return fields


def _shown_before(args: object) -> bytes:
    """Return the original text of an unreadable job that a user has retried in Ruby's web interface."""
    match args:
        case [str(text)]:
            return text.encode()
    raise CodecError(f"a job of class {UNREADABLE} must have the original job as its only argument")


def _named(ruby_queue: RubyQueueName) -> str:
    # These values don't contain white space.
    return f"{ruby_queue.system} {ruby_queue.queue} {ruby_queue.namespace}".rstrip()


def _message(ruby_queue: RubyQueueName, fields: dict[str, Any], names: Mapping[str, str]) -> bytes:
    name, args = fields.pop("class", None), fields.pop("args", None)
    if not isinstance(name, str) or not name:
        raise CodecError("the job has no class")
    if not isinstance(args, list):
        raise CodecError(f"the args of {name:.200} are not a list")
    # In Ruby, all else is true.
    if args and fields.get("encrypt") is not None and fields["encrypt"] is not False:
        raise CodecError(
            f"Sidekiq Enterprise encrypted the last argument of {name:.200}; push it without `encrypt: true`"
        )
    call = unwrapped(name, args)
    job = names.get(call.name, call.name)
    if not 0 < len(job) <= MAX_NAME:
        raise CodecError(
            f"the name of the job's class has {len(job)} characters; at most {MAX_NAME} are allowed"
        )
    fields["class"] = name
    if call.name != name or retry_queue(fields):
        # They can't be restored from a wrapped call, and the retry queue needs them.
        fields["args"] = args
    headers = {
        ORIGIN: _named(ruby_queue),
        FIELDS: _write(fields).decode(),
        **_traces(fields.get("trace_propagation_headers")),
    }
    if fields.get("tags"):
        headers[TAGS] = _write(fields["tags"]).decode()
    return encode(
        job, call.args, call.kwargs, _enqueued_at(fields), headers,
        _overrides(fields), HARD_LIMIT,
    )  # fmt: skip


def epoch_ms(value: object) -> int:
    """Convert Sidekiq's time to epoch ms: seconds up to version 7, ms since version 8. Returns 0 if there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**53:
        return 0
    return int(value) if value >= _MS else round(value * 1000)


def allowed_retries(fields: Mapping[str, Any]) -> int | None:
    """Return how often a Sidekiq job may still be retried; None if the job doesn't set a limit."""
    wanted, used = fields.get("retry"), fields.get("retry_count")
    if wanted is None:
        return None
    most = wanted if type(wanted) is int else RETRIES if wanted else 0
    # retry_count is 0 once the first run has failed.
    most -= used + 1 if type(used) is int else 0
    return min(MAX_RETRIES, max(0, most))


def retry_queue(fields: Mapping[str, Any]) -> str:
    """Return the queue for a Sidekiq job's retries; '' if it doesn't name any."""
    name = fields.get("retry_queue")
    return name if isinstance(name, str) else ""


def _caution(fields: Mapping[str, Any]) -> str:
    batch = fields.get("bid")
    if not batch:
        return ""
    name = fields.get("class")
    return f"class {name!s:.200} will run, but its batch {batch!s:.200} won't be notified: only Sidekiq Pro does that"


def origin(headers: Mapping[str, str]) -> tuple[RubyQueueName, dict[str, Any]] | None:
    """Return the Ruby queue and the fields of a message's original job; None if Ruby didn't push it."""
    try:
        fields = decode_any(headers[FIELDS].encode())
        return _queue_of(headers), fields if isinstance(fields, dict) else {}
    except (KeyError, CodecError, ConfigError):
        return None


def _queue_of(headers: Mapping[str, str]) -> RubyQueueName:
    system, queue, namespace, *_ = [*headers[ORIGIN].split(" "), "", ""]
    return checked_queue("resque" if system == "resque" else "sidekiq", queue, namespace)


def read_back(content: bytes) -> tuple[RubyQueueName, dict[str, Any]] | None:
    """Return the Ruby queue and the fields of a message's original job, with its arguments; None for other messages."""
    try:
        envelope = decode(content)
    except CodecError:
        return None
    source = origin(envelope.headers)
    if source is None:
        return None
    ruby_queue, fields = source
    fields.setdefault("args", envelope.args)
    return ruby_queue, fields


def refused_back(content: bytes) -> tuple[RubyQueueName, bytes, str] | None:
    """Return a rejected job's Ruby queue, its original bytes and the reason; None if `content` isn't a rejected job."""
    stored = read_refusal(content)
    try:
        return stored and (_queue_of(stored.headers), stored.raw, stored.why)
    except (KeyError, ConfigError):
        return None


def call_of(content: bytes) -> bytes:
    """Return bytes that are equal for messages with the same job and arguments.

    A call that can't be decoded is returned as is.
    """
    try:
        envelope = decode(content)
    except CodecError:
        return content
    return _write((envelope.job, envelope.args, envelope.kwargs))


def _mid(jid: object, default_mid: str) -> str:
    usable = isinstance(jid, str) and 0 < len(jid) <= 128 and jid.isprintable()
    return str(jid) if usable else default_mid


def _enqueued_at(fields: Mapping[str, Any]) -> int:
    return epoch_ms(fields.get("enqueued_at")) or epoch_ms(fields.get("created_at"))


def _overrides(fields: Mapping[str, Any]) -> Overrides | None:
    retries = allowed_retries(fields)
    expires_at = epoch_ms(fields.get("expiry"))  # Sidekiq Pro's expires_in
    if retries is None:
        return Overrides(expires_at=expires_at) if expires_at else None
    return Overrides(retries=retries, expires_at=expires_at)


def _traces(given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        return {}
    return {name: given[name] for name in _TRACES if isinstance(given.get(name), str)}
