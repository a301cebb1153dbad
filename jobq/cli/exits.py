"""Exit codes of commands. Scripts may rely on these codes."""

from __future__ import annotations

from jobq import errors
from jobq.worker import exit_codes as of_worker

OK = 0
NO = 1
USAGE = 2
UNAVAILABLE = 3
REFUSED = 4
BAD_CALL = 5
FAILED = 70
INTERRUPTED = 130
PIPE_CLOSED = 141

MEANINGS = {
    OK: "success",
    NO: "the answer is no: unknown mid, not confirmed, check failed",
    USAGE: "wrong option, argument or setting",
    UNAVAILABLE: "no server: it is unreachable, or the embedded server can't start",
    REFUSED: "the server rejected the call: memory full, too few replicas, or a script failed",
    BAD_CALL: "no such job here, or a call that cannot be encoded as JSON",
    **of_worker.MEANINGS,
    FAILED: "an error in jobq or in your code; the traceback is on stderr",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "the reader of the output closed it",
}

_BY_CLASS: tuple[tuple[type[errors.JobqError], int], ...] = (
    (errors.ConfigError, USAGE),
    (errors.UnavailableError, UNAVAILABLE),
    (errors.EmbeddedError, UNAVAILABLE),
    (errors.BufferFullError, UNAVAILABLE),
    (errors.ServerFullError, REFUSED),
    (errors.NotDurableError, REFUSED),
    (errors.ScriptError, REFUSED),
    (errors.CodecError, BAD_CALL),
    (errors.JobNotFoundError, BAD_CALL),
    (errors.JobAlreadyRegisteredError, BAD_CALL),
    (errors.JobqError, NO),
)


def code_of(error: errors.JobqError) -> int:
    """Return the exit code for an error that made the command fail."""
    return next(code for kind, code in _BY_CLASS if isinstance(error, kind))
