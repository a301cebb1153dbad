"""Sends signals to flows: `begin`, `cancel`, `retry`, `look` (check the flow) and `signal` (a value for a wait step).

A signal is stored in the outbox of the flow's queue until a drainer delivers the signal to the flow. If calls are
signed or encrypted, signals are also protected, for one queue and flow. Then write access to the server isn't enough to
cancel a flow or to approve a waiting step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from jobq.client.connection import Client, default_client
from jobq.errors import CodecError, ConfigError
from jobq.jobs.queues import ClientLike
from jobq.jobs.signing import is_sealed, opened, seal_of
from jobq.queue.queue import Queue

Word = Literal["begin", "signal", "cancel", "retry", "look"]
WORDS: tuple[Word, ...] = get_args(Word)
#: Separates the step and the value of a signal, and the word and its detail in sealed data.
SEPARATOR = "\x1f"
#: Called with the client and the queue after each signal. The testing kit uses this to run flows immediately.
listeners: list[Callable[[Client, str], object]] = []


def announce(
    client: Client,
    home: str,
    word: Word,
    run: str,
    detail: str = "",
    durability: str | None = None,
) -> None:
    """Send a signal to a flow. A repeated signal is harmless.

    Raises NotDurableError if the durability isn't confirmed.

    Args:
        home: The queue that receives the flow's signals.
        run: `flow.run_id`. Without a run id, the signal is for the flow's run at delivery time.
        detail: For `signal`, the step, SEPARATOR and the value. For `retry`, the step, or '' for all steps.
        durability: Default: the client's durability.
    """
    seal = seal_of(client)
    if seal is not None:
        text = f"{word}{SEPARATOR}{detail}"
        detail = seal.of("flow").close_text(home, run, text)
    queue_at(client, home).announce(word, run, detail, durability=durability)
    for listener in listeners:
        listener(client, home)


def announced(client: ClientLike, home: str, word: str, run: str, detail: str) -> str:
    """Return the plain text of a signal's detail. Raises CodecError if the detail can't be verified or decrypted."""
    seal = seal_of(client)
    if seal is None:
        opened(None, home, run, detail.encode())
        return detail
    said, _, rest = seal.of("flow").open_text(home, run, detail).partition(SEPARATOR)
    if said != word:
        raise CodecError(f"bad seal: the signal is {word!r:.20}, but its seal is for {said!r:.20}")
    return rest


def is_for_others(client: ClientLike, detail: bytes) -> bool:
    """Return whether this process lacks the keys for a signed or encrypted signal."""
    return seal_of(client) is None and is_sealed(detail)


def queue_at(client: Client, name: str) -> Queue:
    """Return the queue object that all senders of this process share."""
    queue: Queue = client.queues.get(name) or client.queues.setdefault(name, Queue(name, client))
    return queue


def client_of(given: ClientLike | None) -> Client:
    """Return the given client, or the default client. Raises ConfigError if it isn't a Client."""
    client = given or default_client()
    if not isinstance(client, Client):
        raise ConfigError(
            f"client={client!r:.80} is not a Client; pass the client returned by jobq.connect()"
        )
    return client
