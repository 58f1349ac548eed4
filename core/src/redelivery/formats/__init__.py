"""Writes and reads messages, events, error contexts and delivery specs."""
