"""RSMQ's errors, with the names and texts of its Node client.

::

    RsmqError            base class, with Node's text "unkown"
    ├── NoAttributeSuppliedError
    ├── MissingParameterError
    ├── InvalidFormatError
    ├── InvalidValueError
    ├── MessageNotStringError
    ├── MessageTooLongError
    ├── QueueNotFoundError
    └── QueueExistsError
"""

from __future__ import annotations

from typing import ClassVar

from jobq.errors import JobqError


class RsmqError(JobqError):
    """unkown"""

    #: RSMQ's name for this error, which clients of every language compare.
    name: ClassVar[str] = "unkown"


class NoAttributeSuppliedError(RsmqError):
    """No attribute was supplied"""

    name = "noAttributeSupplied"


class MissingParameterError(RsmqError):
    """No parameter supplied"""

    name = "missingParameter"

    def __init__(self, item: str) -> None:
        super().__init__(f"No {item} supplied")


class InvalidFormatError(RsmqError):
    """Invalid format"""

    name = "invalidFormat"

    def __init__(self, item: str) -> None:
        super().__init__(f"Invalid {item} format")


class InvalidValueError(RsmqError):
    """A number is out of its range"""

    name = "invalidValue"

    def __init__(self, item: str, least: int, most: int) -> None:
        super().__init__(f"{item} must be between {least} and {most}")


class MessageNotStringError(RsmqError):
    """Message must be a string"""

    name = "messageNotString"


class MessageTooLongError(RsmqError):
    """Message too long"""

    name = "messageTooLong"


class QueueNotFoundError(RsmqError):
    """Queue not found"""

    name = "queueNotFound"


class QueueExistsError(RsmqError):
    """Queue exists"""

    name = "queueExists"
