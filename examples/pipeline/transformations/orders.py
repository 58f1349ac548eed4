"""Orders of a stream go to a queue; those without a customer are its dead letters."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

dp.create_sink(
    "order_queue",
    "redelivery",
    {
        "url": "sqlite:/tmp/redelivery-pipeline/orders.db?queue=orders",
        "requireAttributes": "subject",
        "deadLetterSink": "native",  # the quarantine
    },
)


@dp.append_flow(target="order_queue")
def orders() -> DataFrame:
    """Ten new orders with each update; every tenth has no customer."""
    made = SparkSession.active().readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    customer = f.when(f.col("value") % 10 != 0, f.concat(f.lit("c"), f.col("value") % 7))
    return made.select(
        f.lit("org.example.order").alias("type"),
        f.lit("/shop").alias("source"),
        customer.alias("subject"),
        f.col("value").alias("number"),
    )
