"""RSMQ's errors, under the names and in the words that its Node client gives them.

::

    RsmqError            unkown (its spelling): the fallback
    ├── NoAttributeSupplied
    ├── MissingParameter
    ├── InvalidFormat
    ├── InvalidValue
    ├── MessageNotString
    ├── MessageTooLong
    ├── QueueNotFound
    └── QueueExists
"""

from __future__ import annotations

from typing import ClassVar

from jobq.errors import JobqError


class RsmqError(JobqError):
    """unkown"""

    #: What RSMQ calls this error; clients of every language compare it.
    name: ClassVar[str] = "unkown"


class NoAttributeSupplied(RsmqError):
    """No attribute was supplied"""

    name = "noAttributeSupplied"


class MissingParameter(RsmqError):
    """No parameter supplied"""

    name = "missingParameter"

    def __init__(self, item: str) -> None:
        super().__init__(f"No {item} supplied")


class InvalidFormat(RsmqError):
    """Invalid format"""

    name = "invalidFormat"

    def __init__(self, item: str) -> None:
        super().__init__(f"Invalid {item} format")


class InvalidValue(RsmqError):
    """A number is out of its range"""

    name = "invalidValue"

    def __init__(self, item: str, least: int, most: int) -> None:
        super().__init__(f"{item} must be between {least} and {most}")


class MessageNotString(RsmqError):
    """Message must be a string"""

    name = "messageNotString"


class MessageTooLong(RsmqError):
    """Message too long"""

    name = "messageTooLong"


class QueueNotFound(RsmqError):
    """Queue not found"""

    name = "queueNotFound"


class QueueExists(RsmqError):
    """Queue exists"""

    name = "queueExists"
