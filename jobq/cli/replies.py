"""Replies printed as redis-cli prints them on a terminal: escaped, so that no content reaches it raw."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

Reply = str | bytes | int | None | tuple[Any, ...] | list[Any]
_ESCAPES = {
    0x5C: "\\\\",
    0x22: '\\"',
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
    0x07: "\\a",
    0x08: "\\b",
}


def shown(reply: Reply, margin: str = "") -> str:
    """The lines of a reply, without the last line's end; all but the first begin with `margin`."""
    if reply is None:
        return "(nil)"
    if isinstance(reply, int):
        return f"(integer) {reply}"
    if isinstance(reply, str | bytes):
        return quoted(reply.encode() if isinstance(reply, str) else reply)
    if not reply:
        return "(empty array)"
    width = len(str(len(reply)))
    inner = margin + " " * (width + 2)
    rows = [f"{number:>{width}}) {shown(item, inner)}" for number, item in enumerate(reply, 1)]
    return f"\n{margin}".join(rows)


def quoted(text: bytes) -> str:
    """`"a\\n\\xff"`: printable ASCII as it is, everything else as an escape."""
    return '"' + "".join(_ESCAPES.get(byte) or _plain(byte) for byte in text) + '"'


def _plain(byte: int) -> str:
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"


def content_record(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields for JSON: `content` as text, and `content_base64` too where it is none."""
    content: bytes = fields["content"]
    text = content.decode("utf-8", "backslashreplace")
    record = {**fields, "content": text}
    if text.encode() != content:
        record["content_base64"] = base64.b64encode(content).decode()
    return record
