"""Exit codes by class of error."""

from __future__ import annotations

import pytest

from jobq import errors
from jobq.cli import exits
from jobq.worker import exit_codes as of_worker


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError, 2), (errors.UnavailableError, 3), (errors.EmbeddedError, 3), (errors.ServerFullError, 4),
        (errors.ScriptError, 4), (errors.CodecError, 5), (errors.JobNotFoundError, 5),
        (errors.JobAlreadyRegisteredError, 5), (errors.LeaseLostError, 1), (errors.JobFailedError, 1),
    ],
)  # fmt: skip
def test_exit_code_follows_the_class_of_the_error(error: type[errors.JobqError], code: int) -> None:
    assert exits.code_of(error()) == code


def test_every_exit_code_has_a_meaning() -> None:
    codes = {
        value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)
    }
    codes |= set(of_worker.MEANINGS)
    assert codes == set(exits.MEANINGS)
