"""Ids of rows that bring none: the same whenever Spark runs the same task again, in whatever order.

An id is a hash of load, partition, row, and how many equal rows of the partition came before. Equal rows
are interchangeable, so their order doesn't matter either. The partition is in it because tasks don't
know of one another's rows: without it equal rows of two partitions would be one message.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from jobq.queue.binding import mid_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Ids:
    """The ids of one attempt at one partition. Keeps about 100 bytes per row."""

    def __init__(self, load_id: str, partition: int) -> None:
        load = load_id.encode("utf-8", "surrogatepass")
        self._base = blake2b(b"%d:%b%d:" % (len(load), load, partition), digest_size=12)
        self._seen: set[bytes] = set()
        self._repeats: dict[bytes, int] = {}

    def id(self, row: bytes) -> str:
        """The next id of a row with this content."""
        hashed = self._base.copy()
        hashed.update(row)
        digest = hashed.digest()
        if digest in self._seen:
            n = self._repeats[digest] = self._repeats.get(digest, 0) + 1
            hashed.update(b"\0%d" % n)
            digest = hashed.digest()
        else:
            self._seen.add(digest)
        return mid_of(digest)


def with_ids(df: DataFrame, column: str = "id", load_id: str = "") -> DataFrame:
    """`df` with a column for `idColumn`: ids that stay the same however the rows are partitioned.

    A hash of `load_id`, the row, and its number among equal rows; costs a shuffle. Give a load that recurs
    with the same rows a `load_id` of its own each time.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    whole = F.to_json(F.struct(*[F.col(f"`{name}`") for name in df.columns]))
    number = F.row_number().over(Window.partitionBy(whole).orderBy(F.lit(0)))
    named = F.concat_ws("\0", F.lit(load_id), whole, number.cast("string"))
    return df.withColumn(column, F.substring(F.sha2(named, 256), 1, 32))
