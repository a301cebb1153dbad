"""Rules for repeating script calls safely, without any I/O.

Each caller numbers its calls, and makes only one call at a time. The scripts record the number and the reply of the
caller's last call. If the same number arrives again, they return the recorded reply; they reject a lower number. So a
client may repeat a call whose reply was lost, but only while the server keeps that record.

The main classes:

- `BoundScripts` binds scripts to the keys of one queue, topic or flow. Arguments are passed by name:
  `scripts["append"].call(caller, {"now": ""}, rest)` makes a numbered call, and `scripts["read"].run({"from": 1, …})`
  makes a call that is safe to repeat. With an `AsyncClient`, use `await … .acall(…)` and `await … .arun(…)`.
- `ScriptCall` describes a call without a number, so that a protocol can build the call in one place and send it in
  another. `client.ask(call)` or `await aclient.ask(call)` passes the reply to the call's `read` and returns the result.
- `CallState` decides when to repeat a call. A driver (`connection.Client` or `aio.AsyncClient`) does the I/O::

      state.sending()                      # before each try; raises TimeoutError if it is too late
      following = state.failed(error)      # after each failed try
      # forget the node, close connections, raise following.error, send SCRIPT LOAD, sleep following.pause_s

  Then the driver sends `state.command` again, to `state.redirect` if a Cluster redirected only this call.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from redis import exceptions as redis_errors

from jobq.client import clock
from jobq.client.scripts import Argument, Command, Script, load, packed, wire, words_packed
from jobq.errors import (
    ConfigError,
    LeaseLostError,
    ScriptError,
    ServerFullError,
    UnavailableError,
    masked,
)

Values = Mapping[str, Argument]
T = TypeVar("T")

#: How long a server keeps the record of a caller's last call: the PX of `last_call` in lua/.
RECORD_S = 600.0
#: How long a call is repeated after it may first have reached the server. The other half of the record's lifetime is
#: for a repetition that reaches the server late.
REPEAT_S = RECORD_S / 2
#: Approximate maximum content of one call. The server can't serve other clients while it handles the call.
BYTES_PER_CALL = 4 * 1024 * 1024
#: A reply that requests the same call again, because one call may not do all the work.
AGAIN = b"again"
#: Reply of a script for plain calls if the call needs the general script. The call changed nothing.
GENERAL = b"general"
#: Maximum number of consecutive calls that use the general script without trying the script for plain calls.
MAX_SKIPPED = 32
#: Maximum number of consecutive SCRIPT LOADs for one call, because scripts may be flushed between two commands.
LOADS = 10
FIRST_PAUSE_S, MAX_PAUSE_S = 0.01, 1.0
#: Minimum time for a first try on a connection that was used before.
MIN_TRY_S = 0.25

#: Errors of a broken connection.
LOST = (redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.InvalidResponse, OSError)  # fmt: skip
#: Temporary errors: a lost connection, or a server that is loading its data, moving keys or failing over.
PASSING = (
    *LOST, redis_errors.TryAgainError, redis_errors.ClusterDownError, redis_errors.ReadOnlyError,
    redis_errors.MovedError, redis_errors.AskError,
)  # fmt: skip
#: Errors that a driver hands to `CallState.failed`.
FAILED = (*PASSING, redis_errors.ResponseError)
_LASTING = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)
#: Error codes of a server that rejects writes for now, because its disk is full or its replicas are missing.
_FULL_FOR_NOW = frozenset(("MISCONF", "NOREPLICAS"))
#: Matches the script command in the error for a user who may not send that command.
_OF_SCRIPTS = re.compile(r"'(script|eval|evalsha)(\|load)?'")
WITHOUT_SCRIPTS = (
    "where SCRIPT and EVALSHA are forbidden, run jobq functions load and set JOBQ_FUNCTIONS=1"
)
#: Suffix that a server adds to a script's own error.
_PLACE_IN_SCRIPT = re.compile(r",? script: \S+, on @?\w+:-?\d+\.$")


def error_code(error: BaseException | None) -> str:
    """Return the first word of a server's error, which is its code unless redis-py has removed the code."""
    return str(error).partition(" ")[0]


def is_full_for_now(error: BaseException) -> bool:
    """Return whether the server rejected a write that it may accept later. The rejected write changed nothing."""
    return isinstance(error, redis_errors.RedisError) and error_code(error) in _FULL_FOR_NOW


def moment(now: int | None) -> Argument:
    """Return the `now` argument of a script: '' means the server's clock."""
    return "" if now is None else now


class Tries:
    """The tries of one numbered call.

    Attributes:
        since: When the server may first have received the call; 0 if no try can have arrived.
    """

    since = before = 0

    def answered_with_error(self) -> None:
        """Record that the server answered the last try with an error, so that this try changed nothing."""
        self.since = self.before

    @property
    def arrived(self) -> bool:
        """Whether one of the tries may have reached the server."""
        return bool(self.since)

    @property
    def over(self) -> bool:
        """Whether it is too late to send the call again. Always False while the server can't have received it."""
        return bool(self.since) and clock.boot_ns() - self.since >= REPEAT_S * 1e9


class Caller:
    """A caller of numbered calls.

    Attributes:
        id: 96 random bits, in 16 characters.
        arrived: Function to call when a reply with messages has arrived, before the messages are read.
        renewals: How many calls were repeated under a new number, because their old number had expired.
    """

    __slots__ = ("arrived", "heads", "id", "number", "renewals")

    def __init__(self, arrived: Callable[[], object] = bool, caller_id: str = "") -> None:
        self.arrived = arrived
        self.id = caller_id or new_id()
        self.number = self.renewals = 0
        #: Packed prefixes of this caller's calls, by bound script.
        self.heads: dict[BoundScript, bytes] = {}

    def next(self) -> int:
        """Return the number for the next call."""
        self.number += 1
        return self.number

    def token(self, index: int) -> str:
        """Return the token of the message with this index, starting at 0, in the last call's reply."""
        return f"{self.id}.{self.number}.{index}"


def new_id() -> str:
    """Return a random id that no other caller has."""
    return secrets.token_urlsafe(12)


class Callers:
    """A pool of `Caller` objects. Two threads never use the same object at the same time."""

    def __init__(self) -> None:
        # Taking callers from a list one by one and putting them back doesn't need a lock.
        self._spare: list[Caller] = []
        self._pid = os.getpid()
        #: Makes a caller available for other calls. Don't give it back if the outcome of its last call is unknown.
        self.give_back: Callable[[Caller], None] = self._spare.append

    def take(self) -> Caller:
        """Return a caller that nobody else uses until it is given back."""
        if self._pid != os.getpid():
            # A forked child must not use callers that its parent also uses.
            self._pid = os.getpid()
            self._spare.clear()
        try:
            return self._spare.pop()
        except IndexError:
            return Caller()


class Patience(Protocol):
    """The settings of a client that limit how its calls are retried.

    Attributes:
        should_give_up: The client calls this while a call waits for the server. True ends the wait.
    """

    url: str
    patience_s: float
    socket_timeout_s: float
    should_give_up: Callable[[], bool]


class Following(NamedTuple):
    """The actions of a driver after a failed try, in this order.

    Attributes:
        forget: Forget which node serves the key, and look it up again.
        silent: The node didn't answer, so query it last.
        close: Close the idle connections to the node.
        error: Raise this error, unless it is None.
        load: Send SCRIPT LOAD on the next connection.
        pause_s: Sleep for this time.
    """

    error: Exception | None = None
    forget: bool = False
    silent: bool = False
    close: bool = False
    load: bool = False
    pause_s: float = 0.0


class CallState:
    """A call in progress. It knows the command to send and what to do after each failure, but doesn't do I/O."""

    _loads = 0
    _pause_s = 0.0
    _sent = _unknown = False
    #: The node to which a Cluster redirected only the next try. That try sends ASKING first.
    redirect: tuple[str, int] | None = None
    #: How long the next try may take. None for the first try, which only a socket's timeouts limit.
    left_s: float | None = None
    #: Makes the call that replaces this call if the reply is GENERAL; see PlainFirst.
    general: Callable[[Tries | None], CallState] | None = None

    def __init__(
        self,
        client: Patience,
        command: Command,
        script: Script | None = None,
        tries: Tries | None = None,
        renew: Callable[[], Command] | None = None,
    ) -> None:
        """Create the state of a call.

        Args:
            tries: Earlier tries of this call.
            renew: Returns the same command with a new number, for a repeat after the old number has expired. Pass
                this only if attempt tokens make such a repeat safe.
        """
        self._client = client
        self.command = command
        self.script = script
        if tries is None and script is not None and script.recorded:
            tries = Tries()
        #: Tries of this call in all its rounds; None if the server doesn't record the call.
        self.tries = tries
        self._renew = renew
        self._began = time.monotonic()

    def sending(self) -> None:
        """Record that a try is about to be sent. Raises redis-py's TimeoutError if the call must not be repeated."""
        tries = self.tries
        if tries is not None:
            now = clock.boot_ns()
            if tries.since and now - tries.since >= REPEAT_S * 1e9:
                raise redis_errors.TimeoutError("this call can no longer be repeated")
            # The server may now receive the call, unless it answers this try with an error.
            tries.before = tries.since
            tries.since = tries.since or now
        self._sent = True

    def again(self, client: Patience | None = None) -> CallState:
        """Return a new state to repeat the call. By default, the retries have the limits of the previous client."""
        client = client or self._client
        state = CallState(client, self.command, self.script, self.tries, self._renew)
        state.general = self.general
        return state

    def is_left_by(self, reply: Any) -> bool:
        """Return whether the script for plain calls replied that only the general script can run this call."""
        return self.general is not None and bool(reply) and reply[0] == GENERAL

    def as_general(self) -> CallState:
        """Return the call to make after the reply GENERAL: the same call, made with the general script."""
        assert self.general is not None
        if self.tries is not None:
            self.tries.answered_with_error()  # this try changed nothing, as if it had failed
        return self.general(self.tries)

    @property
    def arrived(self) -> bool:
        """Whether one of the tries may have reached the server."""
        return self.tries is not None and self.tries.arrived

    def failed(self, error: Exception) -> Following:
        """Record that a try failed with `error`, and return the driver's next actions."""
        sent, self._sent = self._sent, False
        if sent and self.tries is not None and _is_answer(error):
            self.tries.answered_with_error()
        if isinstance(error, redis_errors.NoScriptError):
            self._loads += 1
            if self._loads % (LOADS + 1):
                return Following(load=True)
            error = redis_errors.ConnectionError(
                "the server's scripts are flushed again and again, or this user may not load them: "
                + WITHOUT_SCRIPTS
            )
        full_for_now = is_full_for_now(error)
        # After a lost reply, a later "full" doesn't reveal that try's outcome, so repeat the call until it is known.
        if not full_for_now and not (
            self._unknown and isinstance(error, redis_errors.OutOfMemoryError)
        ):
            final = refusal(error, self.command, self.script)
            if final is not None:
                return Following(final)
        self._unknown = self._unknown or (sent and not full_for_now)
        elsewhere = self._elsewhere(error)
        if self.tries is not None and self.tries.over:
            if self._renew is None:
                return elsewhere._replace(error=self._outcome_unknown(error))
            self.command, self.tries = self._renew(), Tries()
        final = self._gave_up(error)
        if final is not None:
            return elsewhere._replace(error=final)
        return elsewhere._replace(pause_s=self._pause())

    def _elsewhere(self, error: Exception) -> Following:
        self.redirect = None
        if isinstance(error, redis_errors.AskError) and not isinstance(
            error, redis_errors.MovedError
        ):
            self.redirect = (error.host, error.port)
            return Following()
        broken = not isinstance(error, redis_errors.ResponseError)
        return Following(
            forget=not isinstance(error, redis_errors.TryAgainError),
            silent=broken,
            # If one connection to a node is broken, the others are or soon will be.
            close=broken or isinstance(error, redis_errors.ReadOnlyError),
        )

    def _gave_up(self, error: Exception) -> Exception | None:
        return gave_up(error, self._client, self._deadline, self._unknown)

    def _outcome_unknown(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"no answer from {masked(self._client.url)} for {REPEAT_S:g} s ({error}), so it is not repeated again: "
            f"repeating is harmless only for {RECORD_S:g} s. It is unknown whether the call took effect: "
            f"check, or call again if a second call is harmless"
        )

    @property
    def _deadline(self) -> float:
        return self._began + self._client.patience_s

    def _pause(self) -> float:
        """Return how long to sleep: 0 after the first failure, then a pause that doubles each time."""
        passed_s = time.monotonic() - self._began
        patience_s = self._client.patience_s
        pause_s = max(0.0, min(self._pause_s * random.uniform(0.5, 1.0), patience_s - passed_s))
        self._pause_s = min(MAX_PAUSE_S, max(FIRST_PAUSE_S, self._pause_s * 2))
        # Together, the tries take no longer than the patience or a socket's timeout, whichever is longer.
        self.left_s = max(patience_s, self._client.socket_timeout_s) - passed_s - pause_s
        return pause_s


def _is_answer(error: Exception) -> bool:
    return isinstance(error, redis_errors.ResponseError | redis_errors.BusyLoadingError)


def first_try_s(patience_s: float, socket_timeout_s: float) -> float:
    """Return how long a first try waits for a reply on a connection that was used before.

    A load balancer or a firewall may have silently dropped the connection. So half of the patience is reserved for a
    try on a new connection.
    """
    half_s = max(MIN_TRY_S, patience_s / 2)
    return min(half_s, socket_timeout_s) if half_s < patience_s else socket_timeout_s


def gave_up(error: Exception, client: Patience, deadline: float, unknown: bool) -> Exception | None:
    """Return the call's final error if its deadline has passed, or if the login or the certificate was rejected.

    Args:
        unknown: Whether the call may have taken effect.
    """
    if isinstance(error, _LASTING):
        return ConfigError(
            f"{masked(client.url)} rejected the login ({error}); check user and password in the URL"
        )
    over = time.monotonic() >= deadline or client.should_give_up()
    if over and not unknown and is_full_for_now(error):
        return ServerFullError(f"the server rejects writes now; nothing was changed: {error}")
    if over or is_untrusted(error):
        return UnavailableError(_away(error, client, unknown))
    return None


def _away(error: Exception, client: Patience, unknown: bool) -> str:
    address, within = masked(client.url), f"within {client.patience_s:g} s"
    if is_untrusted(error):
        return (
            f"the certificate of {address} can't be verified ({error}); nothing was sent. Set the URL's option "
            "ssl_ca_certs to a file with the CA's certificate"
        )
    if unknown:
        said = f"no answer from {address} {within} ({error}); whether the last call took effect is unknown"
    elif _is_answer(error):
        said = f"{address} didn't accept the call {within} ({error}); nothing was changed"
    else:
        said = f"no connection to {address} {within} ({error}); nothing was sent"
    return f"{said}. Check the address in JOBQ_URL, or set JOBQ_PATIENCE to wait longer"


def is_login_refused(error: BaseException) -> bool:
    """Return whether this is jobq's error for a server that rejected the login."""
    return isinstance(error.__cause__, _LASTING)


def is_untrusted(error: BaseException | None) -> bool:
    """Return whether a connection failed because the server's certificate can't be verified."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error))


def address_error(error: BaseException) -> str:
    """Return the reason if `error` suggests that the server's address is wrong; otherwise, return ''."""
    for cause in _causes(error):
        if isinstance(cause, redis_errors.InvalidResponse):
            return "another kind of server answered"
        unknown_host = isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN
        if unknown_host or isinstance(cause, ConnectionRefusedError | FileNotFoundError):
            return str(getattr(cause, "strerror", "") or cause)
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def refusal(error: Exception, command: Command, script: Script | None) -> Exception | None:
    """Convert a permanent error of the server to an error of jobq. For a temporary error, return None."""
    if isinstance(error, redis_errors.OutOfMemoryError):
        return ServerFullError(
            f"the server has reached its memory limit, so nothing was changed; raise maxmemory, or delete dead "
            f"messages and results: {error}"
        )
    if isinstance(error, PASSING) or error_code(error) == "BUSY":
        return None
    words = command[:2] if isinstance(command, tuple) else ()
    named = f"script {script.name}" if script else " ".join(map(str, words))
    text = _PLACE_IN_SCRIPT.sub("", str(error))
    remedy = "; run jobq functions load" * is_missing_function(error)
    if is_denied(error) and _OF_SCRIPTS.search(str(error)):
        remedy = f"; {WITHOUT_SCRIPTS}"
    return ScriptError(f"the server refused {named}: {text}{remedy}")


def is_denied(error: BaseException | None) -> bool:
    """Return whether the server rejected a call because its user lacks a right."""
    return error is not None and (
        isinstance(error, redis_errors.NoPermissionError) or is_denied(error.__cause__)
    )


def is_missing_function(error: BaseException | None) -> bool:
    """Return whether FCALL didn't find the function, or FUNCTION DELETE didn't find the library."""
    # Both errors have only the general code ERR, so compare their texts. redis-py may remove the code from the text.
    return str(error).removeprefix("ERR ") in ("Function not found", "Library not found")


def reply_lost(error: BaseException) -> UnavailableError:
    """Return the error for a lost reply to a call that must not be repeated."""
    return UnavailableError(
        f"the reply was lost ({error}), so it is unknown whether the call took effect; check, or repeat it if that is "
        f"harmless"
    )


class ScriptCall(NamedTuple, Generic[T]):
    """A script call as a value: the command, how to read the reply, and whether the call may be repeated.

    Attributes:
        read: Turns the raw reply into the result, or raises the error in the reply.
        repeatable: Whether repeating the call is harmless. Other calls are repeated only while the server can't have
            received them. If their reply is lost, they raise UnavailableError.
    """

    script: Script
    keys: tuple[str, ...]
    args: Sequence[Argument]
    read: Callable[[Any], T]
    repeatable: bool = True


class Driver(Patience, Protocol):
    """The interface of a blocking client.

    Attributes:
        clock: Function that returns the time for scripts, in epoch ms; None means the server's clock.
    """

    clock: Callable[[], int] | None

    def verb(self, script: Script) -> tuple[Argument, Argument]:
        """Return the first two words of the command that calls `script`."""
        ...

    def perform(self, key: str, state: CallState, by: Any = None) -> Any:
        """Make one call on the node that serves `key`; return the raw reply."""
        ...


class AsyncDriver(Protocol):
    """The interface of an asyncio client."""

    def perform(self, key: str, state: CallState, by: Any = None) -> Awaitable[Any]:
        """Make one call without blocking the event loop; see Driver.perform."""
        ...


class NumberedCall(Generic[T]):
    """A numbered call as a value. It can be sent in several rounds and on any connection, but takes effect once.

    An example is a dequeue that is pipelined after a blocking pop of the wake marker. The server runs it when the pop
    returns, so a message reaches an idle child without another round trip. The call's Caller must not make another call
    before the result has arrived.
    """

    def __init__(
        self, client: Driver, key: str, state: CallState, read: Callable[[Any], T],
        older: Callable[[Tries | None, int], CallState] | None = None,
    ) -> None:  # fmt: skip
        """Create a call from its state.

        Args:
            read: Turns the raw reply into the result.
            older: Returns an updated state for a delayed call, given its earlier tries and its age in ms.
        """
        self._client, self._key, self._state = client, key, state
        self._older, self._is_sent = older, False
        self.read = read

    def sent(self) -> bytes:
        """Record that the command is about to be sent, and return its bytes."""
        self._state.sending()
        self._is_sent = True
        return wire(self._state.command)

    def take(self, reply: Any) -> T:
        """Return the result, given the reply to the sent command."""
        if self._state.is_left_by(reply):
            reply = self._client.perform(self._key, self._state.as_general())
        return self.read(reply)

    def make(self, client: Driver | None = None, passed_ms: int = 0) -> T:
        """Make the call, or repeat it because its reply was lost.

        Args:
            client: Makes the call instead of the usual client.
            passed_ms: Time since the call was created.
        """
        client, state = client or self._client, self._state
        if passed_ms and self._older is not None:
            state = self._older(state.tries, passed_ms)
        if self._is_sent:
            # The state is kept, because a late repetition gets a new number.
            state = self._state = state.again(client)
        self._is_sent = True
        return self.read(client.perform(self._key, state))


class FixedValues(dict[str, Argument]):
    """Script arguments that many numbered calls share. Each script packs the shared arguments only once."""

    __slots__ = ("kept",)

    def __init__(self, values: Values) -> None:
        super().__init__(values)
        #: The packed values, by script.
        self.kept: dict[Script, bytes] = {}

    def packed(self, script: Script) -> bytes:
        """Return the values, packed in the order of `script`."""
        if len(self) + 2 != script.nargs:
            raise script.misnamed(self)
        made = self.kept[script] = words_packed(script.order_numbered(self))
        return made


class BoundScript:
    """A script bound to one set of keys, such as a queue's. Threads may share it."""

    __slots__ = ("_call_key", "_client", "_head", "_nwords", "_verb", "_what", "keys", "script")

    def __init__(
        self, client: Driver, script: Script, keys: Sequence[str], call_key: str, what: str
    ) -> None:
        """Bind a script.

        Args:
            keys: The script's keys, without the key of the caller's record.
            call_key: Prefix of the key of a caller's record; the caller's id follows.
            what: Name of the queue or limit in error messages, such as "queue 'low'".
        """
        self._client = client
        self._call_key, self._what = call_key, what
        self._verb = client.verb(script)
        self.keys = tuple(keys)
        self.script = script
        self._head = words_packed((*self._verb, len(self.keys), *self.keys))
        #: Number of words in a numbered call. Other calls have one word less, because they lack the caller's record.
        self._nwords = len(self._verb) + 1 + len(self.keys) + 1 + script.nargs

    def __repr__(self) -> str:
        return f"<BoundScript {self.script.name} of {self._what}>"

    def run(
        self,
        values: Values = {},  # noqa: B006
        rest: Sequence[Argument] = (),
        extra_keys: Sequence[str] = (),
    ) -> Any:
        """Make a call that is harmless to repeat; return the raw reply."""
        return self._client.perform(self.keys[0], self.state(values, rest, extra_keys))

    def run_for(self, caller_id: str, values: Values) -> Any:
        """Run a script whose last key is the record of one caller; return the raw reply."""
        if len(values) != self.script.nargs:
            raise self.script.misnamed(values)
        keys = (*self.keys, f"{self._call_key}{caller_id}")
        command = (*self._verb, len(keys), *keys, *self.script.order(values))
        return self._client.perform(keys[0], CallState(self._client, command, self.script))

    async def arun(self, driver: AsyncDriver, values: Values, rest: Sequence[Argument] = ()) -> Any:
        """Make the same call as `run` with an asyncio client."""
        return await driver.perform(self.keys[0], self.state(values, rest))

    def call(
        self,
        caller: Caller,
        values: Values,
        rest: Sequence[Argument] = (),
        *,
        extra_keys: Sequence[str] = (),
        by: Any = None,
        fenced: bool = False,
    ) -> Any:
        """Make the next numbered call of `caller` and return the raw reply.

        Raises LeaseLostError if the script rejects the caller.

        Args:
            extra_keys: Keys that follow the key of the caller's record.
            by: See `Client.perform`.
            fenced: After the call's number has expired, repeat the call under a new number. Pass True only if attempt
                tokens make this safe.
        """
        state = self.numbered(caller, values, rest, extra_keys, fenced=fenced)
        reply = self._client.perform(self.keys[0], state, by)
        if reply and reply[0] == b"closed":
            raise self.closed_error(caller)
        return reply

    async def acall(
        self,
        driver: AsyncDriver,
        caller: Caller,
        values: Values,
        rest: Sequence[Argument] = (),
        **options: Any,
    ) -> Any:
        """Make the same call as `call` with an asyncio client.

        Args:
            options: The options `extra_keys` and `fenced` of `call`.
        """
        state = self.numbered(caller, values, rest, **options)
        return self.served(caller, await driver.perform(self.keys[0], state))

    def state(
        self, values: Values, rest: Sequence[Argument] = (), extra_keys: Sequence[str] = ()
    ) -> CallState:
        """Prepare a call that is safe to repeat, without sending it."""
        if len(values) != self.script.nargs:
            raise self.script.misnamed(values)
        head = self._head
        if extra_keys:
            keys = (*self.keys, *extra_keys)
            head = words_packed((*self._verb, len(keys), *keys))
        tail = packed((*self.script.order(values), *rest))
        nwords = self._nwords - 1 + len(extra_keys) + len(rest)
        command = b"*%d\r\n%b%b" % (nwords, head, tail[tail.index(b"\n") + 1 :])
        return CallState(self._client, command, self.script)

    def numbered(
        self,
        caller: Caller,
        values: Values,
        rest: Sequence[Argument] = (),
        extra_keys: Sequence[str] = (),
        tries: Tries | None = None,
        fenced: bool = False,
    ) -> CallState:
        """Prepare the next numbered call of `caller`, without sending it."""
        script = self.script
        # Only the parts that differ between calls are packed each time.
        head = None if extra_keys else caller.heads.get(self)
        if head is None:
            head = self._head_of(caller, extra_keys)
        nwords = self._nwords + len(extra_keys) + len(rest)
        if type(values) is FixedValues:
            number, tail = b"%d" % caller.next(), packed(tuple(rest))
            fixed = values.kept.get(script)
            command = b"*%d\r\n%b$%d\r\n%b\r\n%b%b" % (
                nwords, head, len(number), number, values.packed(script) if fixed is None else fixed,
                tail[tail.index(b"\n") + 1 :],
            )  # fmt: skip
        else:
            if len(values) + 2 != script.nargs:
                raise script.misnamed(values)
            tail = packed((caller.next(), *script.order_numbered(values), *rest))
            command = b"*%d\r\n%b%b" % (nwords, head, tail[tail.index(b"\n") + 1 :])
        renew = partial(self._renewed, caller, values, rest, extra_keys) if fenced else None
        return CallState(self._client, command, script, tries, renew)

    def under(
        self, caller: Caller, values: Values, rest: Sequence[Argument], tries: Tries | None,
        fenced: bool, extra_keys: Sequence[str] = (),
    ) -> CallState:  # fmt: skip
        """Return a call that repeats the caller's last call under the same number, maybe with another script."""
        tail = packed((caller.number, *self.script.order_numbered(values), *rest))
        head, nwords = self._head_of(caller, extra_keys), self._nwords + len(extra_keys) + len(rest)
        command = b"*%d\r\n%b%b" % (nwords, head, tail[tail.index(b"\n") + 1 :])
        renew = partial(self._renewed, caller, values, rest, extra_keys) if fenced else None
        return CallState(self._client, command, self.script, tries, renew)

    def _head_of(self, caller: Caller, extra_keys: Sequence[str]) -> bytes:
        """Return the packed prefix of a numbered call, up to the caller's id."""
        keys = (*self.keys, f"{self._call_key}{caller.id}", *extra_keys)
        head = words_packed((*self._verb, len(keys), *keys, caller.id))
        if not extra_keys:
            caller.heads[self] = head
        return head

    def _renewed(
        self, caller: Caller, values: Values, rest: Sequence[Argument], extra_keys: Sequence[str]
    ) -> Command:
        caller.renewals += 1
        return self.numbered(caller, values, rest, extra_keys).command

    def served(self, caller: Caller, reply: Any) -> Any:
        """Return the reply to a numbered call. Raises LeaseLostError if the script rejected the caller."""
        if reply and reply[0] == b"closed":
            raise self.closed_error(caller)
        return reply

    def closed_error(self, caller: Caller) -> LeaseLostError:
        """Return the error for a call whose caller the script rejected."""
        return LeaseLostError(
            f"{self._what} rejected caller {caller.id}: it was closed, or this call is older than its latest call"
        )


class PlainFirst:
    """Decides whether to try the script for plain calls first, or to use the general script directly.

    The script for plain calls costs the server less, because it has fewer keys and arguments. But some calls need the
    general script, depending on the queue. For such a call, the first script answers GENERAL, and the client repeats
    the call with the general script. After several such answers in a row, more calls skip the first script. Threads may
    share a PlainFirst, because a wrong count costs only a round trip.
    """

    __slots__ = ("_most", "sent", "skip")

    def __init__(self) -> None:
        #: Number of calls to send to the general script before the plain script is tried again. Senders count it down.
        self.skip = 0
        #: Number of calls sent to the plain script since the last GENERAL reply. Senders count it up.
        self.sent = 1
        self._most = 0

    def answered_general(self, instead: CallState) -> CallState:
        """Record that the last call needs the general script. Return `instead`, the same call with that script."""
        is_next = self.sent <= 1
        self._most = min(MAX_SKIPPED, 2 * self._most or 1) if is_next else 0
        self.skip, self.sent = self._most, 0
        return instead


class TimedScript(BoundScript):
    """A bound script that uses the client's clock. An empty argument `now` is replaced with the clock's time."""

    __slots__ = ("_clock",)

    def __init__(
        self,
        client: Driver,
        script: Script,
        keys: Sequence[str],
        call_key: str,
        what: str,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(client, script, keys, call_key, what)
        self._clock = clock

    def state(
        self, values: Values, rest: Sequence[Argument] = (), extra_keys: Sequence[str] = ()
    ) -> CallState:
        """Prepare a call that is safe to repeat, without sending it."""
        return super().state(self._timed(values), rest, extra_keys)

    def numbered(
        self,
        caller: Caller,
        values: Values,
        rest: Sequence[Argument] = (),
        extra_keys: Sequence[str] = (),
        tries: Tries | None = None,
        fenced: bool = False,
    ) -> CallState:
        """Prepare the next numbered call of `caller`, without sending it."""
        return super().numbered(caller, self._timed(values), rest, extra_keys, tries, fenced)

    def under(
        self, caller: Caller, values: Values, rest: Sequence[Argument], tries: Tries | None,
        fenced: bool, extra_keys: Sequence[str] = (),
    ) -> CallState:  # fmt: skip
        """Return a call with the same number as the caller's last call."""
        return super().under(caller, self._timed(values), rest, tries, fenced, extra_keys)

    def _timed(self, values: Values) -> Values:
        return {**values, "now": self._clock()} if values.get("now") == "" else values


class BoundScripts(dict[str, BoundScript]):
    """The scripts of one folder in lua/, by name. Each is bound to the keys of one queue or limit at first use.

    Args:
        area: Name of the folder.
        prefix: Prefix of the keys; `<prefix>call:<caller>` is the key of a caller's record.
        key: Returns the key for a name in the Lua source.
        what: Name of the queue or limit in error messages, such as "queue 'low'".
    """

    def __init__(
        self, client: Driver, area: str, prefix: str, key: Callable[[str], str], what: str
    ) -> None:
        super().__init__()
        self._client, self._area, self._key, self._what = client, area, key, what
        self._call_key = f"{prefix}call:"

    def __missing__(self, name: str) -> BoundScript:
        script = load(self._area, name)
        keys = [self._key(key) for key in script.keys if key != "last_call"]
        client, call_key, what = self._client, self._call_key, self._what
        clock = client.clock
        if clock is None:
            bound = BoundScript(client, script, keys, call_key, what)
        else:
            bound = TimedScript(client, script, keys, call_key, what, clock)
        self[name] = bound
        return bound
