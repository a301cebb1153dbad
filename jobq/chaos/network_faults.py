"""Faults of the network between jobq and its server, simulated by a proxy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from jobq.chaos.proxy import BOTH, DOWN
from jobq.chaos.round_setup import RoundSetup
from jobq.chaos.workers import children_of
from jobq.config import ServerSettings


def lost_reply(setup: RoundSetup) -> None:
    """Reset a connection instead of delivering the reply to an EVALSHA. The server has run the script."""
    proxy = setup.main_proxy()
    before = proxy.lost
    with setup.injected("lost-reply"):
        proxy.lose_reply(setup.random.randint(1, 8))
        _await(lambda: proxy.lost != before)


def _await(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 1
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.005)


def reset(setup: RoundSetup) -> None:
    """Reset every connection."""
    with setup.injected("reset"):
        setup.main_proxy().reset_all()


def tear(setup: RoundSetup) -> None:
    """Deliver only some bytes of a request or a reply, then reset the connection."""
    proxy = setup.main_proxy()
    before = proxy.torn
    with setup.injected("tear"):
        proxy.tear(setup.random.randint(1, 100))
        _await(lambda: proxy.torn != before)


def blackhole(setup: RoundSetup) -> None:
    """Hold all traffic for longer than a lease, then deliver it."""
    _withhold(setup, "blackhole", setup.workers.lease_s * setup.random.uniform(1.2, 1.6))


def timeout(setup: RoundSetup) -> None:
    """Hold all traffic for longer than clients wait for a reply, so that calls are repeated and arrive twice."""
    seconds = ServerSettings().socket_timeout_s + setup.random.uniform(0.5, 1.5)
    _withhold(setup, "timeout", seconds)


def one_way(setup: RoundSetup) -> None:
    """Hold the traffic in one direction for longer than a lease, then deliver it."""
    way = setup.random.choice(BOTH)
    _withhold(setup, "one-way", setup.workers.lease_s * setup.random.uniform(1.2, 1.6), [way])


def half_open(setup: RoundSetup) -> None:
    """Stop forwarding on existing connections without closing them; new connections work."""
    proxy = setup.main_proxy()
    with setup.injected("half-open", cuts=True):
        try:
            proxy.freeze()
            time.sleep(ServerSettings().socket_timeout_s + setup.random.uniform(0.5, 1.5))
        finally:
            proxy.reset_frozen()


def partition(setup: RoundSetup) -> None:
    """Hold the traffic of half of the workers for more than two leases, then deliver it."""
    proxy, workers = setup.second_proxy(), setup.workers
    pids = [
        pid for worker in workers.on_second_proxy for pid in (worker.pid, *children_of(worker.pid))
    ]
    with setup.injected("partition", pids, cuts=True):
        try:
            proxy.hold()
            time.sleep(workers.lease_s * setup.random.uniform(2.0, 2.3))
        finally:
            proxy.release()


def latency(setup: RoundSetup) -> None:
    """Delay each KB by up to 30 ms in both directions, for a while."""
    proxy = setup.main_proxy()
    with setup.injected("latency"):
        try:
            proxy.latency_s = 0.03
            time.sleep(setup.random.uniform(0.5, 1.5))
        finally:
            proxy.latency_s = 0.0


def slow(setup: RoundSetup) -> None:
    """Delay each KB by up to 200 ms, and limit each connection to 64 KB/s in both directions, for a while."""
    proxy = setup.main_proxy()
    with setup.injected("slow"):
        try:
            proxy.latency_s, proxy.bytes_per_s = 0.2, 64 * 1024.0
            time.sleep(setup.random.uniform(0.5, 1.5))
        finally:
            proxy.latency_s = proxy.bytes_per_s = 0.0


def _withhold(setup: RoundSetup, name: str, seconds: float, ways: Sequence[str] = BOTH) -> None:
    proxy = setup.main_proxy()
    with setup.injected(name, cuts=True):
        try:
            proxy.hold(ways)
            time.sleep(seconds)
        finally:
            proxy.release()


#: How long records of calls live in such a round.
RECORD_S = 3.0
#: How long calls still arrive while their replies don't.
UNANSWERED_S = 0.5
#: Time for all clients to reconnect.
BACK_S = 1.0


def long_outage(setup: RoundSetup) -> None:
    """Withhold replies, then all traffic, for longer than the server stores call records.

    At the end, deliver the held data, or reset the connections.

    This affects either all clients, or the producers and half of the workers. The other workers keep running messages.
    """
    everybody = bool(setup.random.getrandbits(1))
    proxies = [setup.main_proxy(), setup.second_proxy()] if everybody else [setup.main_proxy()]
    cut_off = [
        worker
        for worker in setup.workers.running
        if everybody or worker not in setup.workers.on_second_proxy
    ]
    pids = [pid for worker in cut_off for pid in (worker.pid, *children_of(worker.pid))]
    with setup.injected("long-outage", pids, cuts=True):
        try:
            for proxy in proxies:
                proxy.hold([DOWN])
            time.sleep(UNANSWERED_S)
            for proxy in proxies:
                proxy.hold()
            time.sleep(RECORD_S * setup.random.uniform(1.2, 1.5))
        finally:
            late = bool(setup.random.getrandbits(1))
            for proxy in proxies:
                if not late:
                    proxy.reset_all()
                proxy.release()
    time.sleep(BACK_S)
