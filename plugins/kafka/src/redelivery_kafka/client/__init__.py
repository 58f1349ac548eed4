"""The parts that only Kafka's client needs: producers, group membership, offsets, partitions, settings."""
