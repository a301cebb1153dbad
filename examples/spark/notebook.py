"""Rows become jobs, and their outcomes become rows. Run it whole, or cell by cell in an editor."""

# %% A session on every core of this machine, and the server that JOBQ_URL names
from pyspark.sql import functions as F

from jobq.pipeline import session

spark = session("notebook")

# %% Customers whose cart has waited for a day, of any source that Spark reads
carts = spark.range(1, 101).select(
    F.col("id").alias("customer"),
    F.concat(F.lit("cart-"), "id").alias("cart"),
    (F.col("id") % 48).alias("hours"),
)
late = carts.where(F.col("hours") >= 24).select("customer", "cart")
print("late carts:", late.count())

# %% One job for each: columns are the arguments, and who runs this cell twice enqueues nothing twice
(
    late.write.format("jobq")
    .mode("append")
    .option("job", "shop.remind")
    .option("queue", "mail")
    .option("idColumn", "cart")
    .option("kwargsColumns", "customer,cart")
    .save()
)

# %% What waits now
queues = spark.read.format("jobq").option("view", "queues").load()
queues.select("queue", "ready", "locked", "deduped", "dead").show()

# %% What has happened so far: load() is a snapshot, so load again to see more
events = spark.read.format("jobq").option("view", "events").option("queues", "mail").load()
(
    events.groupBy("job", "kind")
    .agg(
        F.count("*").alias("attempts"),
        F.percentile("wait_ms", F.lit(0.95)).alias("wait_p95_ms"),
        F.percentile("run_us", F.lit(0.95)).alias("run_p95_us"),
    )
    .orderBy("job", "kind")
    .show()
)

# %% What fails, and how often
events.where("error is not null").groupBy("fingerprint", "error").count().show(truncate=False)
