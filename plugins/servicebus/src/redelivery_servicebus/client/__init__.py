"""Code that only the Service Bus client library needs."""
