"""What a Spark job sees: the data source `redelivery`, `deliver()` and helpers."""
