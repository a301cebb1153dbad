"""Append three orders to the topic `orders`."""

from __future__ import annotations

import json

from jobq.topics import Record, Topic

ORDERS = [{"id": 1, "item": "tea"}, {"id": 2, "item": "café"}, {"id": 1, "item": "coffee"}]


def main() -> None:
    """Append each order with its id as the key and its origin in a header."""
    records = [
        Record(json.dumps(order).encode(), str(order["id"]), {"from": "python"}) for order in ORDERS
    ]
    print("appended", Topic("orders").append_many(records))


if __name__ == "__main__":
    main()
