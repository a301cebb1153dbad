"""Renewal of the slots that jobs hold, by the worker's supervisor."""

from __future__ import annotations

import logging
from collections import defaultdict

import msgspec

from jobq.client.connection import Client
from jobq.client.numbered_calls import Values
from jobq.errors import JobqError
from jobq.limits.calls import LimitCalls
from jobq.limits.concurrency_limit import HolderEntry

logger = logging.getLogger("jobq.limits")
PER_CALL = 500
_DECODER = msgspec.json.Decoder(HolderEntry)


class SlotKeeper:
    """Renews the slots of jobs, up to 500 slots per call, and releases the slots of dead children."""

    def renew(self, client: Client, entries: list[bytes], lease_s: float) -> list[bool | None]:
        """Renew slots; return for each whether it is still held, or None if it could not be renewed."""
        by_limit: dict[tuple[str, int], list[str]] = defaultdict(list)
        holders = [_DECODER.decode(entry) for entry in entries]
        for holder in holders:
            by_limit[holder.name, holder.most].append(holder.token)
        kept: dict[str, bool | None] = {}
        for (name, most), tokens in by_limit.items():
            try:
                kept.update(_renewed(client, name, most, tokens, lease_s))
            except JobqError as error:
                logger.warning("could not renew slots of %s: %s", name, error)
                if not client.is_cluster:
                    break  # all other limits are on the same server
        return [kept.get(holder.token) for holder in holders]

    def leave(self, client: Client, entries: list[bytes]) -> None:
        """Release the slots."""
        for entry in entries:
            holder = _DECODER.decode(entry)
            calls = LimitCalls(holder.name, str(holder.most), client)
            calls.perform(calls.run_steps("leave", {"token": holder.token}))


def _renewed(
    client: Client, name: str, most: int, tokens: list[str], lease_s: float
) -> dict[str, bool | None]:
    calls = LimitCalls(name, str(most), client)
    values: Values = {"now": "", "most": most, "lease_ms": round(lease_s * 1000)}
    kept: dict[str, bool | None] = {}
    for start in range(0, len(tokens), PER_CALL):
        part = tokens[start : start + PER_CALL]
        reply = calls.perform(calls.run_steps("renew", values, part))
        kept.update((token, bool(ok)) for token, ok in zip(part, reply[1:], strict=True))
    return kept
