"""SQLite's own parts: the file and its schema, leases of this process, and the removal of messages."""
