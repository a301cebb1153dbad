"""Topics: append-only logs, read and replayed by any number of groups."""

from __future__ import annotations

from jobq.errors import GroupNotFoundError, OutOfRangeError
from jobq.topics.calls import topic_names
from jobq.topics.group import AsyncTopicGroup, TopicGroup
from jobq.topics.messages import Description, Lag, Record, Retention, TopicBatch, TopicMessage
from jobq.topics.reader import AsyncReader, Reader
from jobq.topics.redismq import RedismqReader, RedismqTopic
from jobq.topics.topic import AsyncTopic, Topic

__all__ = [
    "AsyncReader", "AsyncTopic", "AsyncTopicGroup", "Description", "GroupNotFoundError", "Lag", "OutOfRangeError",
    "Reader", "Record", "RedismqReader", "RedismqTopic", "Retention", "Topic", "TopicBatch", "TopicGroup",
    "TopicMessage", "topic_names",
]  # fmt: skip
