"""A font that draws every letter as one block, so that pictures of pages are the same whichever fonts a machine has."""

from __future__ import annotations

import struct

#: Units of the font: of its em, its line, and of every letter.
EM, ASCENT, DESCENT, WIDTH, HEIGHT = 1000, 800, 200, 550, 600
LAST = 0x10FFFF


def block_font() -> bytes:
    """Return the font as TrueType."""
    square = _square()
    tables = {
        b"OS/2": _os2(),
        b"cmap": _cmap(),
        b"glyf": square,
        b"head": struct.pack(
            ">IIIIHHQQhhhhHHhhh", 0x10000, 0x10000, 0, 0x5F0F3CF5, 3, EM, 0, 0, 0, 0, WIDTH, HEIGHT, 0, 8, 2, 1, 0
        ),
        b"hhea": struct.pack(
            ">IhhhHhhhhhhhhhhhH", 0x10000, ASCENT, -DESCENT, 0, WIDTH, 0, 0, WIDTH, 1, 0, 0, 0, 0, 0, 0, 0, 3
        ),
        b"hmtx": struct.pack(">HhHhHh", WIDTH, 0, WIDTH, 0, WIDTH, 0),
        b"loca": struct.pack(">IIII", 0, 0, 0, len(square)),
        b"maxp": struct.pack(">IHHHHHHHHHHHHHH", 0x10000, 3, 4, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0),
        b"name": _name(),
        b"post": struct.pack(">IIhhIIIII", 0x30000, 0, 0, 0, 1, 0, 0, 0, 0),
    }  # fmt: skip
    head, body = b"", b""
    at = 12 + 16 * len(tables)
    for tag, text in sorted(tables.items()):
        head += tag + struct.pack(">III", _sum(text), at + len(body), len(text))
        body += text + bytes(-len(text) % 4)
    return struct.pack(">IHHHH", 0x10000, len(tables), 128, 3, 16 * len(tables) - 128) + head + body


def _square() -> bytes:
    """Return a rectangle of four points on the baseline."""
    head = struct.pack(">hhhhh", 1, 0, 0, WIDTH - 50, HEIGHT)
    ends = struct.pack(">HH", 3, 0)
    flags = bytes([1, 1, 1, 1])
    xs = struct.pack(">hhhh", 0, 0, WIDTH - 50, 0)
    ys = struct.pack(">hhhh", 0, HEIGHT, 0, -HEIGHT)
    text = head + ends + flags + xs + ys
    return text + bytes(-len(text) % 4)


def _cmap() -> bytes:
    """All characters are one glyph, spaces another."""
    groups = [(0x20, 0x20, 1), (0x21, 0x9F, 2), (0xA0, 0xA0, 1), (0xA1, LAST, 2)]
    text = b"".join(struct.pack(">III", *one) for one in groups)
    table = struct.pack(">HHIII", 13, 0, 16 + len(text), 0, len(groups)) + text
    return struct.pack(">HHHHI", 0, 1, 3, 10, 12) + table


def _os2() -> bytes:
    numbers = struct.pack(">HhHHH", 4, WIDTH, 400, 5, 0) + struct.pack(">11h", *[0] * 11)
    rest = struct.pack(
        ">10sIIII4sHHHhhhHHIIhhHHH", bytes(10), 0, 0, 0, 0, b"NONE", 64, 0x20, 0xFFFF, ASCENT, -DESCENT, 0, ASCENT,
        DESCENT, 1, 0, 500, HEIGHT, 0, 32, 1,
    )  # fmt: skip
    return numbers + rest


def _name() -> bytes:
    text = "Blocks".encode("utf-16-be")
    rows = [struct.pack(">HHHHHH", 3, 1, 0x409, number, len(text), 0) for number in (1, 2, 4, 6)]
    return struct.pack(">HHH", 0, len(rows), 6 + 12 * len(rows)) + b"".join(rows) + text


def _sum(text: bytes) -> int:
    padded = text + bytes(-len(text) % 4)
    return sum(struct.unpack(f">{len(padded) // 4}I", padded)) & 0xFFFFFFFF
