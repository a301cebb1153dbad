"""The visible content of a message: the call with its secrets hidden, or why it can't be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from jobq.client.connection import Client
from jobq.errors import CodecError, JobFailedError, ResultNotStoredError
from jobq.events import trace_id
from jobq.jobs.codec import decode, read_refusal
from jobq.jobs.envelope import enqueued_at
from jobq.jobs.results import decode_result, opened_end
from jobq.jobs.signing import (
    ENCRYPTED,
    MARK,
    Purpose,
    is_sealed,
    key_id_of,
    opened,
    seal_of,
    shown_text,
    unverified,
)
from jobq.observe.facts import job_name
from jobq.observe.redaction import Redactor, ShownArguments
from jobq.queue.types import text_of

#: Maximum number of characters of a text to show.
MAX_SHOWN = 65_536


class ShownCall(NamedTuple):
    """A message's content as one user may see it.

    Attributes:
        job: Name of the job; '' if unknown.
        arguments: Arguments of the call, or None.
        note: How the content is signed or encrypted, or why it can't be read; otherwise ''.
        options: Options set for this message.
        raw: The content as text, if it isn't a call.
    """

    job: str = ""
    arguments: ShownArguments | None = None
    headers: Mapping[str, str] = {}
    options: Mapping[str, Any] = {}
    enqueued_at: int = 0
    not_after: int = 0
    trace: str = ""
    note: str = ""
    raw: str = ""
    size: int = 0


class ShownResult(NamedTuple):
    """Return value of a job.

    Attributes:
        failed: Whether the job failed. If so, the value is the error's text.
        note: Why there is no value to show.
    """

    value: Any = None
    failed: bool = False
    note: str = ""


class Contents:
    """Reads the contents of messages for one user.

    Args:
        arguments: Whether this user may see arguments, results and encrypted content.
        hide_errors: Show the types of errors, not their texts.
    """

    def __init__(
        self, client: Client, redactor: Redactor, *, arguments: bool, hide_errors: bool = False
    ) -> None:
        self._seal, self._redactor, self.may_see = seal_of(client), redactor, arguments
        self._hides_errors = hide_errors

    def job(self, queue: str, mid: str, content: bytes) -> tuple[str, int]:
        """Return the job's name and the enqueue time (epoch ms) from a message's content; '' and 0 if unreadable."""
        plain = self._opened(queue, mid, content)[0]
        return job_name(plain), enqueued_at(plain)

    def call(self, queue: str, mid: str, content: bytes) -> ShownCall:
        """Return the parts of a message's content that this user may see."""
        plain, note = self._opened(queue, mid, content)
        if not plain:
            return ShownCall(note=note or "it is empty", size=len(content))
        try:
            envelope = decode(plain)
        except CodecError as error:
            return self._not_a_call(plain, note or str(error), len(content))
        options = msgspec.to_builtins(envelope.options) if envelope.options else {}
        shown = ShownCall(
            envelope.job, None, {}, options, enqueued_at(plain), envelope.not_after, trace_id(envelope.headers), note,
            "", len(content),
        )  # fmt: skip
        if not self.may_see:
            return shown
        arguments = self._redactor.call(envelope.job, envelope.args, envelope.kwargs)
        return shown._replace(
            arguments=arguments, headers=self._redactor.tree(dict(envelope.headers))
        )

    def text(self, purpose: Purpose, queue: str, mid: str, text: str, *, job: str = "") -> str:
        """Return a text of a message, such as a reason or a log, with secrets hidden.

        A note replaces a sealed text if the user may not see arguments.

        Args:
            job: Name of the message's job. Arguments named in `@job(redact=...)` of this job are also hidden.
        """
        if text.startswith(MARK.decode()) and not self.may_see:
            key = text_of(key_id_of(text.encode("utf-8", "replace")))
            return f"(sealed, key {key})"
        shown = shown_text(self._seal, purpose, queue, mid, text)
        return self.error(shown, job) if purpose == "reason" else self.plain(shown, job)

    def traceback(self, queue: str, mid: str, text: str, job: str = "") -> str:
        """Return a traceback as this user may see it; '' if only the types of errors are shown."""
        return (
            "" if self._hides_errors or not text else self.text("reason", queue, mid, text, job=job)
        )

    def error(self, text: str, job: str = "") -> str:
        """Return the text of an error as this user may see it: `Timeout: no route`, or only `Timeout`."""
        return (
            text.partition("\n")[0].partition(": ")[0]
            if self._hides_errors
            else self.plain(text, job)
        )

    def plain(self, text: str, job: str = "") -> str:
        """Return an unencrypted text, shortened and with secrets hidden."""
        more = len(text) - MAX_SHOWN
        cut = f"{text[:MAX_SHOWN]}… and {more:,} more characters" if more > 0 else text
        return self._redactor.text(cut, self._redactor.declared(job))

    def value(self, purpose: Purpose, queue: str, mid: str, text: str, *, job: str = "") -> Any:
        """Return a message's checkpoint with secrets hidden: as JSON data if possible, otherwise as text. Return None
        if this user may not see it.
        """
        if not self.may_see:
            return None
        shown = shown_text(self._seal, purpose, queue, mid, text)
        try:
            return self._redactor.tree(msgspec.json.decode(shown), self._redactor.declared(job))
        except (msgspec.DecodeError, RecursionError):
            return self.plain(shown, job)

    def result(self, queue: str, job: str, mid: str, content: bytes) -> ShownResult:
        """Return a job's result as this user may see it."""
        if not self.may_see:
            return ShownResult(note="to see it, you need the 'arguments' right")
        try:
            value = decode_result(opened_end(self._seal, queue, mid, content), job, mid)
            return ShownResult(self._redactor.tree(value, self._redactor.declared(job)))
        except JobFailedError as error:
            return ShownResult(self.error(str(error), job), failed=True)
        except (CodecError, ResultNotStoredError) as error:
            return ShownResult(note=str(error))

    def _opened(self, queue: str, mid: str, content: bytes) -> tuple[bytes, str]:
        """Return the content without its signature or encryption, and a note about them."""
        if not is_sealed(content):
            return content, "" if self._seal is None or not content else self._not_sealed(content)
        encrypted, key = content.startswith(ENCRYPTED), text_of(key_id_of(content))
        if encrypted and not self.may_see:
            return b"", f"encrypted, key {key}"
        if self._seal is None:
            note = "encrypted" if encrypted else "signed"
            return b"" if encrypted else unverified(content), (
                f"{note}, key {key}; this process has no keys to check it"
            )
        try:
            return opened(self._seal, queue, mid, content), (
                f"{'encrypted' if encrypted else 'signed'}, key {key}"
            )
        except CodecError as error:
            return b"" if encrypted else unverified(content), f"not trusted: {error}"

    def _not_sealed(self, content: bytes) -> str:
        try:
            opened(self._seal, "", "", content)
            return ""
        except CodecError as error:
            return f"not trusted: {error}"

    def _not_a_call(self, plain: bytes, note: str, size: int) -> ShownCall:
        refusal = read_refusal(plain)
        raw = refusal.raw if refusal else plain
        return ShownCall(
            note=note, raw=self.plain(text_of(raw[:MAX_SHOWN])) if self.may_see else "", size=size
        )
