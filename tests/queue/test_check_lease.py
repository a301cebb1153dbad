"""Check that the answering server is the server that handed a message out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobq.client.connection import Client, connect
from jobq.errors import UnavailableError
from jobq.queue.queue import Queue
from jobq.queue.types import Lease

pytestmark = pytest.mark.one_server


def test_lease_is_known_to_the_server_that_handed_it_out_alone(server: Any, client: Client):
    queue = Queue("low", client)
    queue.enqueue(b"{}", mid="m")
    [message] = queue.dequeue().messages
    lease = Lease("m", message.token)
    queue.check_lease(lease, "a result")
    elsewhere = connect(settings=replace(client.settings, url=f"{server.url}?db=1"))
    with pytest.raises(UnavailableError, match=r"doesn't have the lease of m.*: a result"):
        Queue("low", elsewhere).check_lease(lease, "a result")
    elsewhere.close()
    with pytest.raises(UnavailableError, match="doesn't have"):
        queue.check_lease(Lease("m", "other"), "a result")
