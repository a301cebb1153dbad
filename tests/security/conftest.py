"""Shared parts of the tests of threats: key rings, sealed clients, and a call's way through the executor."""

from __future__ import annotations

import io
import logging
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest

from jobq.cli import main
from jobq.client import functions
from jobq.client.connection import Client
from jobq.config import CodecSettings
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry
from jobq.queue.roles import DEPLOYER, ROLES
from jobq.queue.types import Ending, Message

OLD, NEW = ("2026-05", b"o" * 32), ("2026-11", b"n" * 32)


@pytest.fixture
def ring() -> Callable[..., CodecSettings]:
    """ring("encrypt", OLD, NEW): a ring of two keys unless told otherwise."""

    def made(mode: Any = "sign", *keys: tuple[str, bytes], **others: Any) -> CodecSettings:
        return CodecSettings(mode=mode, keys=keys or (NEW, OLD), **others)

    return made


@pytest.fixture
def registry() -> Registry:
    """A registry without jobs."""
    return Registry()


@pytest.fixture
def attempt(registry: Registry) -> Callable[..., Ending]:
    """attempt(content, seal=…, queue=…, mid=…): how a worker ends a message with these bytes."""

    def hand_out(content: bytes, *, seal: Any = None, queue: str = "low", mid: str = "m") -> Ending:
        runner = Executor(registry, seal=seal)
        call = runner.resolve(queue, Message(mid, content, 1, 0, 7, "first", "caller.1.0", 0))
        return runner.run(call) if isinstance(call, Call) else call

    logging.getLogger("jobq").setLevel(logging.CRITICAL)
    yield hand_out
    logging.getLogger("jobq").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def printed_users() -> list[list[str]]:
    """The words of each line that `jobq acl` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["acl", "--namespace", "jobq"]) == 0
    return [shlex.split(line) for line in printed.getvalue().splitlines()]


@pytest.fixture
def users(redis: Any, client: Client, printed_users: list[list[str]]) -> Iterator[None]:
    """Every user that `jobq acl` prints, made from its lines, with the library in place."""
    for words in printed_users:
        redis.execute_command(*words, ">x")
    functions.load_library(client)
    redis.execute_command("ACL", "LOG", "RESET")
    yield
    for role in (*ROLES, DEPLOYER):
        redis.execute_command("ACL", "DELUSER", f"jobq_{role}")
    redis.function_flush()
