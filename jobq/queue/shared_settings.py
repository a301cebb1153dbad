"""Settings of a partitioned queue: each partition has a copy, and a share of the limit on running messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jobq.client.connection import Client
from jobq.client.numbered_calls import BoundScripts
from jobq.client.pipelining import commands
from jobq.client.scripts import Argument
from jobq.durations import counted
from jobq.errors import ConfigError
from jobq.queue import keys
from jobq.queue.partitions import Epoch
from jobq.queue.types import text_of

ScriptsOf = Callable[[str], BoundScripts]
#: Limits of keys, in the order in which `rules` stores them.
_LIMITS = ("most", "starts", "span_ms", "weight", "waiting")


def shares(most: Argument, number: int) -> list[Argument]:
    """Return each partition's share of `most` running messages. If `most` isn't an integer, every share is `most`."""
    if not isinstance(most, int):
        return [most] * number
    each, more = divmod(most, number)
    return [max(1, each + (index < more)) for index in range(number)]


def check_shares(queue: str, most: Argument, newest: Epoch) -> None:
    """Raise ConfigError if the limit `most` is less than the number of partitions in the newest epoch."""
    if isinstance(most, int) and most < newest.size:
        raise ConfigError(
            f"max={most} of queue {queue!r} is less than {counted(newest.size, 'partition')}, and each partition runs "
            "at least one message; use a larger max, or fewer partitions"
        )


def set_limits(
    queue: str, epoch: Epoch, values: Mapping[str, Argument], scripts_of: ScriptsOf
) -> None:
    """Set limits in all partitions of an epoch. `values` are the script's arguments for the whole queue."""
    names = epoch.names(queue)
    for name, share in zip(names, shares(values["in_queue"], len(names)), strict=True):
        scripts_of(name)["set_limits"].run({**values, "in_queue": share})


class Settings:
    """A queue's settings, which are copied to its partitions."""

    def __init__(self, client: Client, queue: str) -> None:
        self._queue = queue
        prefix = keys.prefix(client.namespace, queue)
        meta = keys.key(prefix, "meta")
        words = ("events", "maxlen", "dead_max", "dead_age_ms", "paused", "pause_ends", "max")
        kept = keys.key(prefix, "rules")
        values, nrules = commands(client, meta, [("HMGET", meta, *words), ("HLEN", kept)])
        # Operators may not send HGETALL. Producers may not send HRANDFIELD either, but only create queues without
        # rules.
        rules = client.command("HRANDFIELD", kept, nrules, "WITHVALUES") if nrules else ()
        *self._values, most = [text_of(value or b"") for value in values]
        self._most: Argument = int(most) if most.isdigit() else ""
        texts = map(text_of, rules)
        self._rules = {key: rule.split(",") for key, rule in zip(texts, texts, strict=True)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and vars(self) == vars(other)

    def check(self, epoch: Epoch) -> None:
        """Raise ConfigError if the partitions of this epoch can't have these settings."""
        check_shares(self._queue, self._most, epoch)

    def copy_to(
        self, epoch: Epoch, scripts_of: ScriptsOf, now_ms: int, *, again: bool = False
    ) -> None:
        """Copy these settings to all partitions of an epoch.

        Args:
            again: Replace settings that were copied before.
        """
        level, length, most_dead, age_ms, paused, ends = self._values
        unset = {"now": "", "key": "", "in_queue": self._most, **dict.fromkeys(_LIMITS, "-")}
        if self._most != "" or again:
            set_limits(self._queue, epoch, unset, scripts_of)
        for key, rule in self._rules.items():
            given = dict(zip(_LIMITS, rule, strict=False))
            set_limits(
                self._queue, epoch, {**unset, "key": key, "in_queue": "-", **given}, scripts_of
            )
        for name in epoch.names(self._queue):
            scripts = scripts_of(name)
            if level or length:
                scripts["set_event_level"].run({"wanted": level, "length": length})
            if most_dead or age_ms:
                scripts["retention"].run({"most": most_dead, "age_ms": age_ms, "on_dead": ""})
            if paused == "1" and not ends:
                scripts["pause"].run({"for_ms": "", "now": ""})
            elif paused == "1" and int(ends) > now_ms:
                scripts["pause"].run({"for_ms": int(ends) - now_ms, "now": ""})
            elif again:
                scripts["resume"].run()
