"""redelivery to a durable queue in one SQLite file: the embedded default and the reference broker."""
