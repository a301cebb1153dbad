"""A state's name: short, and as good as unique."""

from __future__ import annotations

from hashlib import blake2b


def digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=12).digest()
