"""Ask a server what the diagnosis needs: read-only, about a hundred round trips, most of them PINGs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jobq.engine import keys
from jobq.engine.diagnosis import Facts, Finding, judge
from jobq.engine.rights import script_commands
from jobq.engine.script import load
from jobq.errors import ScriptError

if TYPE_CHECKING:
    from jobq.engine.connection import Client

PINGS = 100
SETTINGS = ("appendfsync", "save", "maxmemory-policy", "min-replicas-to-write")
#: Marks of Redis 7.0: functions, and scripts that declare flags.
FLOOR = ("fcall", "evalsha_ro")
BLOCKING = ("blpop", "blmove")
#: A queue that needn't exist: rights are asked for keys of its shape.
PROBE = "doctor"


def findings(client: Client) -> list[Finding]:
    """What is well and what isn't with this server, for jobq's purposes."""
    return judge(facts(client))


def facts(client: Client) -> Facts:
    """What the server says of itself. A part that it refuses to show is noted as unknown."""
    found = Facts(url=client.url, namespace=client.namespace)
    _try(found, "info", lambda: found.info.update(_info(client)))
    _try(found, "settings", lambda: found.settings.update(_settings(client)))
    _try(found, "commands", lambda: found.missing.extend(_missing(client)))
    _try(found, "rights", lambda: found.refused.update(_refused(client)))
    _try(found, "user", lambda: setattr(found, "user", _text(client.command("ACL", "WHOAMI"))))
    found.pings_ms = [_timed(client, "PING")[0] for _ in range(PINGS)]
    found.skew_ms = _skew(client)
    return found


def _try(found: Facts, part: str, ask: Callable[[], Any]) -> None:
    try:
        ask()
    except ScriptError as error:
        found.unknown[part] = str(error)


def _info(client: Client) -> dict[str, str]:
    lines = _text(client.command("INFO")).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _settings(client: Client) -> dict[str, str]:
    reply = [_text(item) for item in client.command("CONFIG", "GET", *SETTINGS)]
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _missing(client: Client) -> list[str]:
    wanted = (*script_commands(), *BLOCKING, *FLOOR)
    reply = client.command("COMMAND", "INFO", *wanted)
    return [name.upper() for name, known in zip(wanted, reply, strict=True) if not known]


def _refused(client: Client) -> dict[str, list[str]]:
    """By key, since rights may end at a pattern: one of a queue, and the two outside every slot."""
    space = client.namespace
    asked = {
        keys.key(keys.prefix(space, PROBE), "messages"): (*script_commands(), *BLOCKING),
        keys.queue_names(space): ("sadd", "srem", "smembers"),
        keys.workers(space): ("hset", "hdel", "hgetall"),
    }
    return {key: _may_not(client, key, commands) for key, commands in asked.items()}


def _may_not(client: Client, key: str, commands: Sequence[str]) -> list[str]:
    reply = client.run(load("doctor", "rights"), [key], commands)
    return [_text(name).upper() for name in reply]


def _timed(client: Client, *command: str) -> tuple[float, Any]:
    began = time.perf_counter()
    reply = client.command(*command)
    return (time.perf_counter() - began) * 1000, reply


def _skew(client: Client) -> float:
    """Server's clock minus ours, ms, taken at the middle of the quickest of a few round trips."""
    best: tuple[float, float] | None = None
    for _ in range(5):
        took_ms, (seconds, micros) = _timed(client, "TIME")
        skew = int(seconds) * 1000 + int(micros) / 1000 - (time.time() * 1000 - took_ms / 2)
        best = min(best or (took_ms, skew), (took_ms, skew))
    return best[1] if best else 0.0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
