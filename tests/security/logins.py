"""Users as `jobq acl` makes them, each with a client that may only call functions."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jobq.cli import main
from jobq.client.connection import Client, connect
from jobq.client.functions import load_library
from jobq.config import ServerSettings
from tests.conftest import Server


@contextmanager
def logins(
    server: Server, redis: Any, client: Client, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Client]]:
    """login("rsmq", "--queues", "mails"): the client of a user made by `jobq acl rsmq --queues mails`."""
    load_library(client)
    redis.execute_command("ACL", "LOG", "RESET")
    made: list[Client] = []

    def login(role: str, *words: str) -> Client:
        assert main(["acl", role, "--user", "shop", *words]) == 0
        redis.execute_command(*shlex.split(capsys.readouterr().out), ">x")
        url = server.url.replace("unix://", "unix://shop:x@")
        made.append(connect(settings=ServerSettings(url=url, functions=True, patience_s=10)))
        return made[-1]

    yield login
    for one in made:
        one.close()
    redis.execute_command("ACL", "DELUSER", "shop")
    redis.function_flush()
