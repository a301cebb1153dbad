"""Stored facts about an error: its class, a fingerprint, and text for people who look at dead messages.

Local variables are never stored. Their values appear only in the error's message. Passwords in URLs are masked.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import PurePath
from traceback import StackSummary, TracebackException
from types import CodeType, TracebackType

from jobq.errors import masked_text, shortened

#: Maximum size of a traceback, and of a dead message's reason, in bytes.
MAX_TEXT = 8192
FRAMES = 5
#: Maximum number of frames for each error of a chain. The innermost frames are kept.
MAX_FRAMES = 20

_OURS = str(PurePath(__file__).parents[1]) + os.sep


def class_name(error: BaseException) -> str:
    """Return the name of an error's class, such as `ValueError` or `requests.exceptions.Timeout`."""
    kind = type(error)
    name = kind.__qualname__
    return clean(name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}")[:200]


def fingerprint(error: BaseException) -> str:
    """Return a fingerprint. Errors of the same class from the same place have the same fingerprint.

    It uses only the class, and the folder, file and function of the innermost frames. So it doesn't depend on the
    machine, or on edits elsewhere in the file.
    """
    parts = [class_name(error)]
    for code in _frames(error.__traceback__)[-FRAMES:]:
        parts.append("/".join(PurePath(code.co_filename).parts[-2:]) + ":" + code.co_qualname)
    return blake2b("\n".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()


def place(error: BaseException) -> str:
    """Return the innermost frame outside jobq, such as `shop/pay.py:42 in charge`; '' without such a frame."""
    shown, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_OURS):
            name = "/".join(PurePath(code.co_filename).parts[-2:])
            shown = f"{name}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return one_column(shown)


def summary(error: BaseException) -> str:
    """Return an error on one line: `ValueError: bad width`."""
    try:
        message = str(error)
    except Exception:  # a broken __str__ must not prevent the message's ending
        message = "(its message can't be shown)"
    text = f"{class_name(error)}: {message}" if message else class_name(error)
    return clean(masked_text(shortened(text)).replace("\n", " ⏎ "))[:500]


def reason(error: BaseException, why: str = "", trace: str = "") -> str:
    """Return a dead message's reason: the error on the first line, then as much of the traceback's end as fits."""
    head = summary(error) + (f" ({why})" if why else "")
    tail = _end_of(trace, MAX_TEXT - len(head.encode()) - 2)
    return f"{head}\n\n{tail}" if tail else head


def traceback_text(error: BaseException) -> str:
    """Return the traceback without jobq's own frames: at most its last MAX_TEXT bytes."""
    try:
        described = TracebackException.from_exception(error, limit=-MAX_FRAMES, compact=True)
        _leave_out_ours(described)
        text = "".join(described.format())
    except Exception:  # a broken __str__, or attributes of an unexpected type
        return ""
    return _end_of(clean(masked_text(shortened(text, end=True))).strip(), MAX_TEXT)


def _leave_out_ours(described: TracebackException) -> None:
    """Remove the frames of jobq from an error, its causes and the errors grouped in it."""
    waiting: list[TracebackException | None] = [described]
    while waiting:
        error = waiting.pop()
        if error is not None:
            kept = [frame for frame in error.stack if not frame.filename.startswith(_OURS)]
            error.stack = StackSummary.from_list(kept)
            waiting += [error.__cause__, error.__context__, *(error.exceptions or ())]


def _end_of(text: str, room: int) -> str:
    if len(text.encode()) <= room:
        return text
    tail = text.encode()[3 - room :].decode("utf-8", "ignore")
    return f"…{tail[max(0, tail.find(chr(10))) :]}"


def clean(text: str) -> str:
    """Return the text with escapes for characters that could control a terminal, split a record or break UTF-8."""
    if text.isprintable():
        return text
    shown = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    return shown.encode("utf-8", "backslashreplace").decode()


def one_column(name: str) -> str:
    """Replace separators in a name, so that it can be one column of an event."""
    return clean(name).replace("\n", " ").replace("\t", " ")[:200]


def _frames(trace: TracebackType | None) -> list[CodeType]:
    codes = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_OURS):
            codes.append(code)
        trace = trace.tb_next
    return codes
