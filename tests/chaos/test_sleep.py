"""A child whose wake connection was cut continues to sleep on another connection."""

from __future__ import annotations

from jobq.chaos.proxy import Proxy
from jobq.client.connection import connect
from jobq.client.waiter import WakeWaiter
from jobq.config import ServerSettings


def test_cut_connection_ends_the_sleep_and_not_the_child(server, redis):
    proxy = Proxy(server.socket)
    client = connect(settings=ServerSettings(url=f"redis://127.0.0.1:{proxy.port}"))
    sleep = WakeWaiter(client, ["wake"])
    assert sleep.wait(0.01, ())
    for _ in range(3):
        proxy.reset_all()
        assert sleep.wait(0.01, ())
    assert sleep.wait(0.01, ())
    sleep.end(())
    client.close()
    proxy.close()
