"""The command `redelivery`."""
