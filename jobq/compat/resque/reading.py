"""A job as Ruby wrote it -> a message of jobq. Pure: no server, no clock.

A Sidekiq job's jid becomes the mid. Its other fields travel in the header `ruby-fields`, so that what comes of
the job can be shown to Ruby again; its tags in `ruby-tags`, as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from jobq.compat.resque.activejob import unwrapped
from jobq.compat.resque.places import Place, System, parse_place
from jobq.errors import CodecError, ConfigError
from jobq.jobs.codec import HARD_LIMIT, MAX_NAME, Overrides, decode, decode_any, encode

#: Sidekiq's own, where a job says `retry: true`.
RETRIES = 25
MOST_RETRIES = 10_000
ORIGIN, FIELDS, TAGS = "ruby", "ruby-fields", "ruby-tags"
_TRACES = ("sentry-trace", "baggage", "traceparent", "tracestate")
_MS = 100_000_000_000
_write = msgspec.json.Encoder().encode


class Arrival(NamedTuple):
    """One job that was taken in. With a `fault` no job can be made of it: `content` is what Ruby wrote."""

    mid: str
    content: bytes
    fault: str = ""


def read_job(place: Place, raw: bytes, otherwise: str, names: Mapping[str, str]) -> Arrival:
    """The message in `raw`. otherwise: its mid if it has no jid. names: Ruby's name -> the job's."""
    mid = otherwise
    try:
        fields = decode_any(raw)
        if not isinstance(fields, dict):
            raise CodecError("it is JSON, but no object")
        mid = _mid(fields.get("jid"), otherwise)
        return Arrival(mid, _message(place, fields, names))
    except (CodecError, ConfigError) as error:
        return Arrival(mid, raw, str(error))


def _message(place: Place, fields: dict[str, Any], names: Mapping[str, str]) -> bytes:
    name, args = fields.pop("class", None), fields.pop("args", None)
    if not isinstance(name, str) or not name:
        raise CodecError("it names no class")
    if not isinstance(args, list):
        raise CodecError(f"the args of {name:.200} are no list")
    call = unwrapped(name, args)
    job = names.get(call.name, call.name)
    if not 0 < len(job) <= MAX_NAME:
        raise CodecError(f"its class has a name of {len(job)} characters; {MAX_NAME} are allowed")
    fields["class"] = name
    if call.name != name:
        fields["args"] = args  # the wrapper's, which couldn't be made again
    headers = {
        ORIGIN: f"{place.system} {place.namespace}:{place.queue}",
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
    """A moment as Sidekiq notes it: seconds with a fraction up to 7, whole ms since 8. 0: none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**53:
        return 0
    return int(value) if value >= _MS else round(value * 1000)


def allowed_retries(fields: Mapping[str, Any]) -> int | None:
    """How often a Sidekiq job may be retried from now on; None where it doesn't say."""
    wanted, used = fields.get("retry"), fields.get("retry_count")
    if wanted is None:
        return None
    most = wanted if type(wanted) is int else RETRIES if wanted else 0
    # retry_count is 0 once the first run has failed.
    most -= used + 1 if type(used) is int else 0
    return min(MOST_RETRIES, max(0, most))


def origin(headers: Mapping[str, str]) -> tuple[Place, dict[str, Any]] | None:
    """Where a message came from, and what Ruby had noted on it; None for one of jobq's own."""
    try:
        system, _, text = headers[ORIGIN].partition(" ")
        fields = decode_any(headers[FIELDS].encode())
        known: System = "resque" if system == "resque" else "sidekiq"
        return parse_place(known, text), fields if isinstance(fields, dict) else {}
    except (KeyError, CodecError, ConfigError):
        return None


def read_back(content: bytes) -> tuple[Place, dict[str, Any]] | None:
    """The Ruby job that a message was made of, whole again; None for one of jobq's own."""
    try:
        envelope = decode(content)
    except CodecError:
        return None
    found = origin(envelope.headers)
    if found is None:
        return None
    place, fields = found
    fields.setdefault("args", envelope.args)
    return place, fields


def _mid(jid: object, otherwise: str) -> str:
    usable = isinstance(jid, str) and 0 < len(jid) <= 128 and jid.isprintable()
    return str(jid) if usable else otherwise


def _enqueued_at(fields: Mapping[str, Any]) -> int:
    return epoch_ms(fields.get("enqueued_at")) or epoch_ms(fields.get("created_at"))


def _overrides(fields: Mapping[str, Any]) -> Overrides | None:
    retries = allowed_retries(fields)
    return None if retries is None else Overrides(retries=retries)


def _traces(given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        return {}
    return {name: given[name] for name in _TRACES if isinstance(given.get(name), str)}
