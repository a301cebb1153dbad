"""Enqueue a job per row, and read events as rows. Run the whole file, or one cell at a time."""

# %% Start Spark on all cores of this machine, with the server that JOBQ_URL names
from pyspark.sql import functions as F

from jobq.pipeline import session

spark = session("notebook")

# %% Select customers whose cart has waited for a day, from any source that Spark reads
carts = spark.range(1, 101).select(
    F.col("id").alias("customer"),
    F.concat(F.lit("cart-"), "id").alias("cart"),
    (F.col("id") % 48).alias("hours"),
)
late = carts.where(F.col("hours") >= 24).select("customer", "cart")
print("late carts:", late.count())

# %% Enqueue a job per row, with columns as arguments; running this cell again doesn't add jobs
(
    late.write.format("jobq")
    .mode("append")
    .option("job", "shop.remind")
    .option("queue", "mail")
    .option("idColumn", "cart")
    .option("kwargsColumns", "customer,cart")
    .save()
)

# %% Show waiting messages
queues = spark.read.format("jobq").option("view", "queues").load()
queues.select("queue", "ready", "locked", "deduped", "dead").show()

# %% Show past attempts; load() reads a snapshot, so call it again for later events
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

# %% Count failures by error
events.where("error is not null").groupBy("fingerprint", "error").count().show(truncate=False)
