"""Signs (HMAC-SHA-256) or encrypts (AES-256-GCM) calls, results and other texts for one queue, mid and purpose.

Signed: ``jobq-s1 <key id> <64 hex digits>`` LF, then the unchanged call. Encrypted: ``jobq-e1 <key id>`` LF, 12 bytes
of salt, a nonce of 12 bytes, then the AES-GCM ciphertext and tag (docs/operating/security.md). A call's `remember_ms`,
which scripts read, follows the key id. The signature or tag is checked before the call is parsed. Invalid bytes raise
only CodecError.
"""

from __future__ import annotations

import binascii
import hmac
import os
from base64 import b64decode, b64encode
from functools import cache
from typing import Any, Literal

from jobq import extras
from jobq.client.clock import wall
from jobq.client.names import base_of
from jobq.config import CodecSettings
from jobq.errors import CodecError
from jobq.formats import SEAL
from jobq.jobs.codec import HARD_LIMIT, checked_size, remember_ms_in
from jobq.jobs.progress import shown_progress
from jobq.jobs.queues import ClientLike

#: The kinds of sealed data. Each has separate keys, so that a call is never accepted as a result.
Purpose = Literal["call", "result", "progress", "reason", "checkpoint", "log", "step", "flow"]
SIGNED, ENCRYPTED = b"jobq-s%d" % SEAL, b"jobq-e%d" % SEAL
#: The common beginning of signed and encrypted data.
MARK = b"jobq-"
#: Maximum number of bytes that a seal adds.
ROOM = 256
_RANDOM, _SALT = 24, 12
#: The longest header has a mark, an id of 40 characters, and 64 digits.
_MAX_HEADER_LENGTH = 128


class Seal:
    """Signs or encrypts with the first key of the settings, and verifies or decrypts with any of their keys."""

    def __init__(self, settings: CodecSettings, purpose: Purpose = "call") -> None:
        self.settings = settings
        self._accept_plain = settings.accept_plain
        self._encrypts = settings.mode == "encrypt"
        self._first = settings.keys[0][0].encode()
        # Separate keys for each mode and purpose, so that a key for one purpose is useless for another.
        what = b"" if purpose == "call" else b", " + purpose.encode()
        self._signing = {i.encode(): _derived(secret, SIGNED + what) for i, secret in settings.keys}
        self._hiding = {
            i.encode(): _derived(secret, ENCRYPTED + what) for i, secret in settings.keys
        }

    def __repr__(self) -> str:
        return f"Seal({self._first.decode()}, {'encrypt' if self._encrypts else 'sign'})"

    def of(self, purpose: Purpose) -> Seal:
        """Return a seal with the same keys for another purpose."""
        return _seal(self.settings, purpose)

    def close_call(self, queue: str, mid: str, call: bytes, due_ms: float = 0) -> bytes:
        """Seal an encoded call for `queue` and `mid`. The sealed call is invalid for another queue or mid.

        The call expires `valid_s` seconds after its due time. Without `due_ms`, the due time is now.
        """
        not_after = int(max(due_ms, wall.ms()) + self.settings.valid_s * 1000)
        nonce = os.urandom(6).hex().encode()
        bounds = b',"not_after":%d,"nonce":"%b"}' % (not_after, nonce)
        sealed = self._closed(queue, mid, call[:-1] + bounds, self._first, remember_ms_in(call))
        checked_size(sealed, f"the sealed call {mid}", HARD_LIMIT)
        return sealed

    def close(self, queue: str, mid: str, content: bytes, like: bytes = b"") -> bytes:
        """Seal any bytes for `queue` and `mid`. Sealing adds at most ROOM bytes.

        Args:
            like: Use the same key as this call, so that the call's producer can open the content.
        """
        key_id = key_id_of(like)
        if key_id not in self._signing:
            key_id = self._first
        return self._closed(queue, mid, content, key_id)

    def _closed(
        self, queue: str, mid: str, content: bytes, key_id: bytes, shown: bytes = b""
    ) -> bytes:
        """Sign or encrypt the content.

        If it is encrypted, `shown` stays readable before the encrypted content but is protected against changes.
        """
        if self._encrypts:
            return self._hidden(queue, mid, content, key_id, shown)
        return self._signed(queue, mid, content, key_id)

    def close_text(self, queue: str, mid: str, text: str, like: bytes = b"") -> str:
        """Seal `text`; see `close`."""
        sealed = self.close(queue, mid, text.encode(), like)
        if not self._encrypts:
            return sealed.decode()
        header, _, body = sealed.partition(b"\n")
        return f"{header.decode()}\n{b64encode(body).decode()}"

    def open_text(self, queue: str, mid: str, text: str) -> str:
        """Return the text that close_text sealed; raise the same errors as `open`."""
        content = text.encode("utf-8", "replace")
        if content.startswith(ENCRYPTED):
            header, _, body = content.partition(b"\n")
            try:
                content = header + b"\n" + b64decode(body, validate=True)
            except binascii.Error as error:
                raise CodecError("bad seal: the text was changed") from error
        return self.open(queue, mid, content).decode()

    def open(self, queue: str, mid: str, content: bytes) -> bytes:
        """Verify or decrypt sealed bytes; raise CodecError, with the reason, if `content` isn't trusted."""
        if len(content) > HARD_LIMIT + ROOM:
            raise CodecError(
                f"content of {len(content):,} bytes is over the limit of {HARD_LIMIT:,}"
            )
        header, _, body = content[:_MAX_HEADER_LENGTH].partition(b"\n")
        body = content[len(header) + 1 :]
        match header.split(b" "):
            case [mark, key_id, mac] if mark == SIGNED:
                return self._verified(queue, mid, key_id, mac, body)
            case [mark, key_id, *shown] if mark == ENCRYPTED and len(shown) < 2:
                return self._shown(queue, mid, key_id, body, *shown)
        if self._accept_plain and not content.startswith(MARK):
            return content
        raise CodecError(
            "no signature: content is not sealed, and this process runs sealed calls only"
        )

    def _signed(self, queue: str, mid: str, content: bytes, key_id: bytes) -> bytes:
        bound = _bound(SIGNED, key_id, queue, mid)
        mac = hmac.digest(self._signing[key_id], bound + content, "sha256").hex().encode()
        return b"%b %b %b\n%b" % (SIGNED, key_id, mac, content)

    def _verified(self, queue: str, mid: str, key_id: bytes, mac: bytes, body: bytes) -> bytes:
        bound = _bound(SIGNED, key_id, queue, mid)
        right = hmac.digest(_key(self._signing, key_id), bound + body, "sha256").hex().encode()
        if not hmac.compare_digest(mac, right):
            raise CodecError(
                "bad signature: content was changed, or was signed for another queue, mid or purpose"
            )
        return body

    def _hidden(self, queue: str, mid: str, content: bytes, key_id: bytes, shown: bytes) -> bytes:
        random = os.urandom(_RANDOM)
        bound = _bound(ENCRYPTED, key_id, queue, mid, shown)
        text = _cipher(self._hiding[key_id], random).encrypt(random[_SALT:], content, bound)
        return b"%b %b%b\n%b%b" % (ENCRYPTED, key_id, shown and b" " + shown, random, text)

    def _shown(self, queue: str, mid: str, key_id: bytes, body: bytes, shown: bytes = b"") -> bytes:
        key, random, text = _key(self._hiding, key_id), body[:_RANDOM], body[_RANDOM:]
        bound = _bound(ENCRYPTED, key_id, queue, mid, shown)
        try:
            content: bytes = _cipher(key, random).decrypt(random[_SALT:], text, bound)
        except CodecError:
            raise
        except Exception as error:  # InvalidTag, ValueError: too short for a nonce or a tag
            raise CodecError(
                "bad seal: content was changed, or was encrypted for another queue, mid or purpose"
            ) from error
        return content


@cache
def _seal(settings: CodecSettings, purpose: Purpose) -> Seal:
    return Seal(settings, purpose)


def seal_for(settings: CodecSettings | None) -> Seal | None:
    """Return the seal for calls; None if calls aren't sealed."""
    return _seal(settings, "call") if settings else None


def seal_of(client: ClientLike) -> Seal | None:
    """Return the seal for calls to this client's server; None if calls aren't sealed."""
    return seal_for(client.settings.codec)


def is_sealed(content: bytes) -> bool:
    """Return whether the content has the mark of a seal."""
    return content.startswith(MARK)


def opened(seal: Seal | None, queue: str, mid: str, content: bytes) -> bytes:
    """Verify or decrypt the content; raise CodecError if it isn't trusted."""
    if seal is not None:
        return seal.open(queue, mid, content)
    if is_sealed(content):
        raise CodecError("content is sealed, but this process has no keys; set JOBQ_CODEC_KEYS")
    return content


def shown_text(seal: Seal | None, purpose: Purpose, queue: str, mid: str, text: str) -> str:
    """Decrypt or verify a progress report or an error for display. If that fails, return the failure in parentheses.

    Unsealed text, which anyone could have stored, is returned unchanged. The data of a progress report is left out.
    """
    shown = opened_text(seal, purpose, queue, mid, text)
    return shown_progress(shown) if purpose == "progress" else shown


def opened_text(seal: Seal | None, purpose: Purpose, queue: str, mid: str, text: str) -> str:
    """Decrypt or verify text as shown_text does, but keep the data of a progress report."""
    if not text.startswith(MARK.decode()):
        return text
    if seal is None:
        return "(sealed, and this process has no keys; set JOBQ_CODEC_KEYS)"
    try:
        return seal.of(purpose).open_text(queue, mid, text)
    except CodecError as error:
        return f"(not trusted: {error})"


def unverified(content: bytes) -> bytes:
    """Return the call that follows a signature, for display only: the signature isn't checked."""
    return content.partition(b"\n")[2] if content.startswith(SIGNED) else content


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"key of " + purpose, "sha256")


def _key(ring: dict[bytes, bytes], key_id: bytes) -> bytes:
    try:
        return ring[key_id]
    except KeyError:
        raise CodecError(
            f"unknown key: content is sealed with {key_id!r:.50}, which is not in JOBQ_CODEC_KEYS"
        ) from None


def key_id_of(sealed: bytes) -> bytes:
    """Return the key id in a seal, without verifying the seal; b'' if the content has no seal."""
    header = sealed[:_MAX_HEADER_LENGTH].partition(b"\n")[0].split(b" ")
    return header[1] if header[0] in (SIGNED, ENCRYPTED) and len(header) > 1 else b""


def _bound(mark: bytes, key_id: bytes, queue: str, mid: str, shown: bytes = b"") -> bytes:
    """Return the additional data that the signature or encryption of a message protects.

    Each part is preceded by its length, so that the parts are unambiguous. The queue's partition isn't included,
    because the producer can't know which partition accepts a message.
    """
    base = base_of(queue).encode("utf-8", "replace")
    parts = [mark, key_id, base, mid.encode("utf-8", "replace")]
    parts += [shown] if shown else []
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _cipher(key: bytes, random: bytes) -> Any:
    # A key per message from 96 random bits, and a nonce of 96 bits: no number of messages exhausts a key.
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise CodecError(f"can't decrypt the content; {extras.install('crypto')}") from error
    return AESGCM(hmac.digest(key, random[:_SALT], "sha256"))
