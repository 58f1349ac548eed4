"""Code that only NATS's client needs: the connection, and requests that wait for their answers."""
