"""Topics: append-only logs, read and replayed by any number of groups."""

from __future__ import annotations

from jobq.compat.topic.aio import AsyncGroup, AsyncReader, AsyncTopic
from jobq.compat.topic.binding import topic_names
from jobq.compat.topic.group import Group
from jobq.compat.topic.message import Batch, Description, Lag, Limits, Message, Record
from jobq.compat.topic.reader import Reader
from jobq.compat.topic.redismq import RedismqReader, RedismqTopic
from jobq.compat.topic.topic import Topic
from jobq.errors import NoGroup, OutOfRange

__all__ = [
    "AsyncGroup", "AsyncReader", "AsyncTopic", "Batch", "Description", "Group", "Lag", "Limits", "Message",
    "NoGroup", "OutOfRange", "Reader", "Record", "RedismqReader", "RedismqTopic", "Topic", "topic_names",
]  # fmt: skip
