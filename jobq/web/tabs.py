"""The tabs of a queue's page. Each is a page of its own, which declares its tab where it is declared."""

from __future__ import annotations

from typing import NamedTuple


class QueueTab(NamedTuple):
    """A tab. route: its page, of which `queue` is a part. figure: what of QueueFigures it counts, '' for nothing."""

    order: int
    route: str
    label: str
    figure: str


TABS: list[QueueTab] = []


def queue_tab(route: str, label: str, order: int, figure: str = "") -> None:
    """Declare a tab."""
    TABS.append(QueueTab(order, route, label, figure))
    TABS.sort()
