"""The parts of confluent-kafka and librdkafka beyond their documented API behave as when they were tried."""

from __future__ import annotations

import re
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, Producer

import redelivery_kafka
from redelivery_kafka.client import internals

SOURCES = Path(redelivery_kafka.__file__).parent


def test_the_installed_client_is_one_with_which_the_internals_were_tried() -> None:
    """On another version: run this file, the suite and the tests of damaged records, then add it to `TRIED`."""
    assert (confluent_kafka.version(), confluent_kafka.libversion()[0]) in internals.TRIED


def test_no_module_but_one_of_the_plugin_and_one_of_the_harness_reaches_into_the_client() -> None:
    private = re.compile(r"pythonapi|CDLL|cimpl|confluent_kafka\.\w+\._|re\.compile\(.*token")
    found = {path.name for path in SOURCES.rglob("*.py") if private.search(path.read_text(encoding="utf-8"))}
    assert found == {"internals.py", "librdkafka.py"}


def test_librdkafka_names_the_setting_that_it_does_not_know_and_checks_those_before_it_first() -> None:
    with pytest.raises(KafkaException) as caught:
        Producer({"linger.ms": "5", internals.INVALID_SETTING: ""})
    assert internals.unknown_setting(caught.value.args[0].str()) == internals.INVALID_SETTING
    with pytest.raises(KafkaException) as caught:
        Producer({"linger.ms": "never", internals.INVALID_SETTING: ""})
    assert internals.unknown_setting(caught.value.args[0].str()) is None


def test_a_connection_that_was_never_established_says_so() -> None:
    said = []
    producer = Producer(
        {"bootstrap.servers": "127.0.0.1:1", "error_cb": lambda error: said.append(error.str()), "log_level": "0"}
    )
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=2)
    producer.poll(0)
    assert any(map(internals.is_failed_connect, said)), said
