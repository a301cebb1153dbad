"""What a short run of the pipeline does, so that the classes it needs get into the archive."""

from __future__ import annotations

import sys
import tempfile

from jobq.pipeline.gateway import end
from jobq.pipeline.sessions import JAVA_OPTIONS, session

_JAVA_S = 300


def run(option: str) -> None:
    """A session whose JVM is given `option`; waits for the JVM's end, when it writes the archive."""
    spark = session(
        "jobq-warmup", master="local[2]", memory="1g", fast=True, conf={JAVA_OPTIONS: option}
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(1000).selectExpr("id", "id % 7 part", "cast(id as string) text")
        rows.write.parquet(f"{folder}/rows")
        spark.read.parquet(f"{folder}/rows").createOrReplaceTempView("rows")
        spark.sql(
            "select part, count(*) n, percentile(id, 0.5) p50, kll_sketch_agg_bigint(id) sketch "
            "from rows where id > 10 group by part order by n desc"
        ).collect()
        spark.sql("select id, sum(id) over (partition by part order by id) s from rows").toPandas()
        spark.createDataFrame([(1, "a")], "id int, text string").join(rows, "id").collect()
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
    spark.stop()
    end(_JAVA_S)


if __name__ == "__main__":
    run(sys.argv[1])
