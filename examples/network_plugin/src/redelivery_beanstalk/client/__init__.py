"""The sockets to beanstalkd."""
