"""What only a client of SQS needs: boto3 clients, requests in batches, queues of rows to send, scans."""
