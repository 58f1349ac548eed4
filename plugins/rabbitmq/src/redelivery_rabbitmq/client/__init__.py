"""What only this client needs: connections, frames, field tables, routes, queues."""
