"""What only SQLite needs: the file and its schema, leases of this process, and how messages leave a queue."""
