"""Report a wrong address or folder before a command uses the server, and tell the user when the command waits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from jobq.client.connection import Client
from jobq.client.numbered_calls import FAILED, address_error
from jobq.client.topology import Single
from jobq.config import ServerSettings, embedded_from_env
from jobq.embedded import server as embedded
from jobq.errors import EmbeddedError, UnavailableError, masked

#: Length of a wait that isn't worth a remark.
QUIET_S = 1.0
#: Failed tries that are further apart than this belong to different waits.
_APART_S = 10.0


def lacks_data(settings: ServerSettings) -> bool:
    """Return whether the command would start an embedded server in a folder without a server's data."""
    # Where a variable forbids the server, its start raises another error.
    allowed = not settings.url and embedded_from_env() is not False
    return allowed and not embedded.data_of(settings).is_dir()


def require_data(settings: ServerSettings) -> None:
    """Raise EmbeddedError if the folder has no data of an embedded server, because then there is nothing to show."""
    if lacks_data(settings):
        raise EmbeddedError(
            f"this folder has no server: {embedded.data_of(settings)} doesn't exist. Run this command in "
            "your project's folder, set --url or JOBQ_URL, or start a worker or enqueue a job here to start a server"
        )


def require_listener(client: Client) -> None:
    """Raise UnavailableError if no server listens at the client's only address.

    The check is skipped if JOBQ_PATIENCE is set, because the command then waits for the server. The check is also
    skipped for a Cluster or Sentinels, because a failover may be in progress.
    """
    if "JOBQ_PATIENCE" in os.environ or not isinstance(client.topology, Single):
        return
    try:
        client.give_back(*client.borrow(""))
    except FAILED as error:
        if reason := address_error(error):
            raise UnavailableError(
                f"no server at {masked(client.url)} ({reason}); nothing was sent. Start the server, or set another "
                "address with --url or JOBQ_URL; with JOBQ_PATIENCE=10s a command waits for a server that is starting"
            ) from error
        # The command's first call reports other errors, after its patience.


def telling_waits(client: Client, say: Callable[[str], object]) -> Callable[[], bool]:
    """Return a callback for `Client.should_give_up` that tells the user when the client waits for the server."""
    began = last = 0.0

    def keep_waiting() -> bool:
        nonlocal began, last
        now = time.monotonic()
        if now - last > _APART_S:
            began = now
        last = now
        if now - began >= QUIET_S:
            say(
                f"waiting up to {client.patience_s:g} s for {masked(client.url)}; Ctrl-C ends the wait"
            )
        return False

    return keep_waiting
