"""Finds the queues of RELIABLEQ. RedisRQ doesn't list them, so this scans a bounded number of keys per call."""

from __future__ import annotations

from typing import NamedTuple

from jobq.client.acl import literal
from jobq.client.connection import Client
from jobq.client.keyscan import scan_keys
from jobq.errors import ConfigError
from jobq.protocols.reliable.keys import checked_key, checked_space
from jobq.queue.types import text_of

#: Number of keys to scan per call.
MAX_KEYS = 20_000


class FoundQueues(NamedTuple):
    """Sorted names of queues.

    Attributes:
        looked_at: Approximate number of scanned keys.
        whole: Whether all keys were scanned.
    """

    names: list[str]
    looked_at: int
    whole: bool


def find_queues(client: Client, ns: str = "reliable", most: int = MAX_KEYS) -> FoundQueues:
    """Look for queues among the keys of all nodes. Invalid queue names are skipped."""
    scan = scan_keys(client, f"{literal(checked_space(ns))}:*:meta", most)
    names = {_name(ns, text_of(key)) for key in scan.keys}
    return FoundQueues(sorted(names - {""}), scan.looked_at, scan.whole)


def _name(ns: str, key: str) -> str:
    """Parse a queue's name from a key such as `reliable:{mails}:meta`; return '' for other keys."""
    tagged = key.removeprefix(f"{ns}:").removesuffix(":meta")
    whole = tagged.startswith("{") and tagged.endswith("}") and "}" not in tagged[1:-1]
    try:
        return checked_key(tagged[1:-1] if whole else tagged)
    except ConfigError:
        return ""
