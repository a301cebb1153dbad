"""Password hashes (scrypt) and random tokens, as the users file stores them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading

from jobq.errors import ConfigError

#: Cost of a hash: 32 MiB and about 0.2 s of a processor.
LOG2_N, BLOCK, PARALLEL = 15, 8, 1
#: OpenSSL rejects the parameters above with less memory.
MAX_MEMORY = 64 * 1024 * 1024
SHORTEST, MAX_LENGTH = 10, 1024
TOKEN_PREFIX = "jobq_"  # noqa: S105 # nosec B105
#: Allows two concurrent hashes, so that a flood of logins uses at most twice the memory of one hash.
_slots = threading.BoundedSemaphore(2)


def hash_password(password: str, salt: bytes | None = None) -> str:
    """Return `scrypt:15:8:1:SALT:HASH`; raise ConfigError for a password that is too short or too long."""
    if not SHORTEST <= len(password) <= MAX_LENGTH:
        raise ConfigError(
            f"the password has {len(password)} characters; it must be between {SHORTEST} and {MAX_LENGTH}"
        )
    salt = secrets.token_bytes(16) if salt is None else salt
    digest = _scrypt(password, salt, LOG2_N)
    return f"scrypt:{LOG2_N}:{BLOCK}:{PARALLEL}:{_text(salt)}:{_text(digest)}"


def password_matches(password: str, stored: str | None) -> bool:
    """Return whether the password has the hash `stored`. If `stored` is None, return False, but take the same time."""
    salt, expected = _read(stored or _NOBODY)
    digest = _scrypt(password[:MAX_LENGTH], salt, LOG2_N)
    return (
        hmac.compare_digest(digest, expected) and stored is not None and len(password) <= MAX_LENGTH
    )


def is_hash(stored: str) -> bool:
    """Return whether this is a hash that `password_matches` can check."""
    try:
        return bool(_read(stored))
    except ConfigError:
        return False


def new_token() -> str:
    """Return a token of 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """Return the stored form of a token or session id: its SHA-256 in hex. Tokens are too long to be guessed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _scrypt(password: str, salt: bytes, log2_n: int) -> bytes:
    with _slots:
        return hashlib.scrypt(
            password.encode("utf-8", "surrogatepass"), salt=salt, n=1 << log2_n, r=BLOCK, p=PARALLEL,
            maxmem=MAX_MEMORY, dklen=32,
        )  # fmt: skip


def _read(stored: str) -> tuple[bytes, bytes]:
    try:
        name, log2_n, block, parallel, salt, digest = stored.split(":")
        same = (name, log2_n, block, parallel) == ("scrypt", str(LOG2_N), str(BLOCK), str(PARALLEL))
        read = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except (ValueError, binascii.Error):
        same, read = False, (b"", b"")
    if not same or len(read[1]) != 32:
        raise ConfigError(
            f"a password hash in the users file is not scrypt:{LOG2_N}:{BLOCK}:{PARALLEL}:SALT:HASH; set the password "
            "again with 'jobq web user add NAME --replace'"
        )
    return read


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


#: Compared with the passwords of unknown names; no password has this hash.
_NOBODY = f"scrypt:{LOG2_N}:{BLOCK}:{PARALLEL}:{_text(bytes(16))}:{_text(bytes(32))}"
