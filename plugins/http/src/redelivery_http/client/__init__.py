"""What only this client needs: a connection, and tokens."""
