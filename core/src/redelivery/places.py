"""Places: names for dead letter queues, from `redelivery.toml`."""
