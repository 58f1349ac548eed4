"""The conformance suite against `http:`, with a request for each message and with batches."""

from redelivery_conformance import BrokerSuite
from redelivery_http.testing import HttpHarness


class TestHttp(BrokerSuite):
    broker = "http"


class TestHttpBatches(BrokerSuite):
    broker = HttpHarness({"http.batch": "100"})
