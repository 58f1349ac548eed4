from redelivery_conformance import BrokerSuite


class TestLmdb(BrokerSuite):
    broker = "lmdb"
