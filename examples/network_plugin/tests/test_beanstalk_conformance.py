from redelivery_conformance import BrokerSuite


class TestBeanstalk(BrokerSuite):
    broker = "beanstalk"
