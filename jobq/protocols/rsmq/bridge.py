"""`jobq rsmq bridge`: RSMQ's Node methods for any language, as lines of JSON.

Each input line, `{"n": 1, "method": "sendMessage", "options": {"qname": "q", "message": "x"}}`, gets an output line,
`{"n": 1, "result": …}` or `{"n": 1, "error": {"name": …, "message": …}}`, in the same order. The calls of up to 1,000
waiting lines are sent to the server together.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from jobq.client.connection import Client
from jobq.client.numbered_calls import ScriptCall
from jobq.client.pipelining import IN_FLIGHT, PipelinedCalls
from jobq.errors import JobqError, ScriptError
from jobq.protocols.rsmq import javascript
from jobq.protocols.rsmq.checks import MAX_SIZE
from jobq.protocols.rsmq.errors import RsmqError
from jobq.protocols.rsmq.messages import DELAY_S, VT_S, Attributes, RsmqMessage
from jobq.protocols.rsmq.requests import Requests, then

READ_BYTES = 1 << 20
_SURROGATE = re.compile("[\ud800-\udfff]")
Options = dict[str, Any]
T = TypeVar("T")


class UnknownMethodError(JobqError):
    """RSMQ has no such method."""


class Bridge:
    """Answers the calls of one process.

    An error is also an answer. Only the end of the input, or `quit`, ends the bridge.
    """

    def __init__(self, client: Client, calls: Requests) -> None:
        self._requests = calls
        self._flights = PipelinedCalls(client)
        self._methods: dict[str, Callable[[Options], ScriptCall[Any]]] = {
            "createQueue": self._create_queue,
            "listQueues": lambda _: calls.list_queues(),
            "deleteQueue": lambda o: calls.remove(_text(o, "qname")),
            "getQueueAttributes": lambda o: then(
                calls.describe(_text(o, "qname"), as_node=True), Attributes.as_dict
            ),
            "setQueueAttributes": self._set_queue_attributes,
            "sendMessage": self._send_message,
            "receiveMessage": lambda o: then(
                calls.receive(_text(o, "qname"), 1, o.get("vt")), lambda reply: _first(reply[0])
            ),
            "popMessage": lambda o: then(calls.pop(_text(o, "qname"), 1), _first),
            "deleteMessage": lambda o: then(
                calls.delete(_text(o, "qname"), [(_text(o, "id"), None)]), _first_as_int
            ),
            "changeMessageVisibility": self._change_message_visibility,
        }
        self.ended = False

    def serve(self, source: int, sink: int) -> None:
        """Read lines from `source`, and write their replies to `sink`, until the input ends or a line calls `quit`."""
        for lines in _lines(source):
            answers = b"".join(self.answer(lines))
            while answers:
                answers = answers[os.write(sink, answers) :]
            if self.ended:
                return

    def answer(self, lines: list[bytes]) -> Iterator[bytes]:
        """Yield a reply for each request line, in the same order."""
        calls: list[tuple[Any, Any]] = []
        for line in lines:
            n, call = self._understood(line)
            calls.append((n, call))
            if self.ended:
                break
        requests = [call for _, call in calls if isinstance(call, ScriptCall)]
        results = iter(self._flights.run(requests))
        for n, call in calls:
            outcome = next(results) if isinstance(call, ScriptCall) else call
            key = "error" if isinstance(outcome, Exception) else "result"
            value = _error(outcome) if isinstance(outcome, Exception) else outcome
            yield _encoded({"n": n, key: value}) + b"\n"

    def _understood(self, line: bytes) -> tuple[Any, Any]:
        """Return the line's call number and its request. If no request is needed, return a reply or error instead."""
        try:
            call = _decoded(line)
        except ValueError as error:
            return None, error
        if not isinstance(call, dict):
            return None, ValueError(
                f'{line!r:.60} is not a call; write {{"n":1,"method":…,"options":{{…}}}}'
            )
        n, method = call.get("n"), str(call.get("method")).removesuffix("Async")
        if method == "quit":
            self.ended = True
            return n, "OK"
        options = call.get("options")
        try:
            if method not in self._methods:
                raise UnknownMethodError(f"rsmq.{call.get('method')} is not a function")
            return n, self._methods[method](options if isinstance(options, dict) else {})
        except (RsmqError, UnknownMethodError) as error:
            return n, error

    def _create_queue(self, o: Options) -> ScriptCall[int]:
        defaults = {"vt": VT_S, "delay": DELAY_S, "maxsize": MAX_SIZE}
        given = {item: value for item in defaults if (value := o.get(item)) is not None}
        return self._requests.create(_text(o, "qname"), **{**defaults, **given})

    def _set_queue_attributes(self, o: Options) -> ScriptCall[Any]:
        settings = (o.get(item) for item in ("vt", "delay", "maxsize"))
        request = self._requests.set(_text(o, "qname"), *settings, as_node=True)
        return then(request, Attributes.as_dict)

    def _send_message(self, o: Options) -> ScriptCall[Any]:
        message = o.get("message")
        if isinstance(message, str):
            message = _SURROGATE.sub("\ufffd", message)
        request = self._requests.send(_text(o, "qname"), [message], o.get("delay"))
        return then(request, lambda ids: ids[0])

    def _change_message_visibility(self, o: Options) -> ScriptCall[Any]:
        held = [(_text(o, "id"), None)]
        request = self._requests.visibility(_text(o, "qname"), held, o.get("vt"))
        return then(request, _first_as_int)


def _lines(source: int) -> Iterator[list[bytes]]:
    """Yield lists of complete lines, up to 1,000 at a time. The last line needn't end with a newline."""
    rest = b""
    while data := os.read(source, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        lines = [line for line in lines if line.strip()]
        for first in range(0, len(lines), IN_FLIGHT):
            yield lines[first : first + IN_FLIGHT]
    if rest.strip():
        yield [rest]


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Half a surrogate pair is valid in JSON, but not in text; Node sends it as U+FFFD.
        return json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("the JSON of this line is nested too deeply") from None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _encoded(answer: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(answer)
    except (ValueError, OverflowError):
        # Half a surrogate pair, or a number of more than 64 bits, that came with the call.
        return json.dumps(answer).encode()


def _text(options: Options, item: str) -> str:
    """Return an option as text, converted like JavaScript's toString: 123 is '123'."""
    value = options.get(item)
    if javascript.is_falsy(value):
        return ""
    # RSMQ reports an empty list as an invalid format, not as a missing parameter.
    return javascript.text(value) or "\0"


def _first(messages: list[RsmqMessage]) -> dict[str, Any]:
    return messages[0].as_dict() if messages else {}


def _first_as_int(done: list[bool]) -> int:
    return int(done[0])


def _error(error: Exception) -> dict[str, str]:
    name = type(error).__name__
    if isinstance(error, RsmqError):
        name = error.name
    elif isinstance(error, ScriptError):
        name = "ReplyError"
    elif isinstance(error, UnknownMethodError):
        name = "TypeError"
    elif not isinstance(error, JobqError):
        name = "SyntaxError"
    return {"name": name, "message": str(error)}
