"""Code that only pika needs: connections, frames, field tables, routes, queues."""
