"""What the handlers under test work on: tables with rows, unique keys and fences. Each method is one atomic step."""

from __future__ import annotations

from typing import Any


class DuplicateRowError(Exception):
    """A row with this key exists."""


class Shop:
    """A database, a gateway that charges cards, a folder of files, and a mail server."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.rows: list[Any] = []
        self.unique: dict[Any, Any] = {}
        self.fences: dict[Any, int] = {}
        self.values: dict[Any, Any] = {}
        self.sent: list[Any] = []

    def observe(self) -> dict[str, Any]:
        return {
            "rows": sorted(self.rows, key=repr), "unique": dict(self.unique), "values": dict(self.values),
            "sent": sorted(self.sent, key=repr),
        }  # fmt: skip

    def append(self, row: Any) -> None:
        """Insert a row."""
        self.rows.append(row)

    def insert(self, key: Any, row: Any) -> None:
        """Insert a row under a unique key."""
        if key in self.unique:
            raise DuplicateRowError(key)
        self.unique[key] = row

    def upsert(self, key: Any, row: Any) -> bool:
        """Insert a row under a unique key unless there is one; whether it was inserted."""
        new = key not in self.unique
        self.unique.setdefault(key, row)
        return new

    def put(self, key: Any, value: Any) -> None:
        self.values[key] = value

    def get(self, key: Any, default: Any = None) -> Any:
        return self.values.get(key, default)

    def put_fenced(self, key: Any, value: Any, fence: int) -> bool:
        """Write a value unless a later attempt has written."""
        if fence < self.fences.get(key, 0):
            return False
        self.fences[key] = fence
        self.values[key] = value
        return True

    def send(self, mail: Any) -> None:
        self.sent.append(mail)

    def send_once(self, key: Any, mail: Any) -> None:
        """Send with an idempotency key, as payment gateways take it."""
        if self.upsert(("sent", key), True):
            self.sent.append(mail)


shop = Shop()
