"""Header dialects: one small module each; `write` and `read` an `ErrorContext`."""
