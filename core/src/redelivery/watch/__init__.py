"""`redelivery watch`: looks at dead letter queues again and again, publishes metrics and raises alerts."""
