"""Topics: append-only logs, read and replayed by any number of groups."""

from __future__ import annotations

from jobq.errors import GroupNotFoundError, OutOfRangeError
from jobq.topics.aio import AsyncGroup, AsyncReader, AsyncTopic
from jobq.topics.binding import topic_names
from jobq.topics.group import Group
from jobq.topics.message import Batch, Description, Lag, Limits, Message, Record
from jobq.topics.reader import Reader
from jobq.topics.redismq import RedismqReader, RedismqTopic
from jobq.topics.topic import Topic

__all__ = [
    "AsyncGroup", "AsyncReader", "AsyncTopic", "Batch", "Description", "Group", "GroupNotFoundError", "Lag", "Limits",
    "Message", "OutOfRangeError", "Reader", "Record", "RedismqReader", "RedismqTopic", "Topic", "topic_names",
]  # fmt: skip
