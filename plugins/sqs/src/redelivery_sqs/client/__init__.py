"""Code that only SQS's client needs: boto3 clients, requests in batches, queues of rows to send, scans."""
