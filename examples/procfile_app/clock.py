"""Enqueue 60 orders, one per second. `ORDERS` and `EVERY_S` change these numbers."""

from __future__ import annotations

import itertools
import os
import time

from shop_jobs import order

if __name__ == "__main__":
    for number in itertools.count(1):
        if number <= int(os.environ.get("ORDERS", "60")):
            order.enqueue(number)
        time.sleep(float(os.environ.get("EVERY_S", "1")))
