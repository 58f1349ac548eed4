"""Every error of confluent-kafka is mapped, and says what to do."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.kit.errors import Code
from redelivery_kafka.errors import (
    ERRORS,
    PRODUCER_LOST,
    TABLE,
    UNKNOWN_TARGET,
    classify,
    classify_reading,
    is_refused,
    while_doing,
)

CODES = {name: value for name in dir(KafkaError) if isinstance(value := getattr(KafkaError, name), int)}


ABOUT_TARGET = {name for name, rule in TABLE.by_code.items() if rule.about_target}


def test_the_client_has_the_codes_that_we_walk() -> None:
    assert len(CODES) > 150


@pytest.mark.parametrize("name", sorted(CODES))
def test_each_code_of_the_client_is_mapped(name: str) -> None:
    error = KafkaError(CODES[name])
    assert error.name() == name
    assert name in TABLE.by_code, f"{name} is a code that Kafka grew: give it a class in errors.py"
    found = classify(KafkaException(error), "storing in 't'")
    assert isinstance(found, BrokerError)
    assert found.native_code == name
    assert str(found).startswith("kafka: storing in 't': ")
    assert str(found).endswith(TABLE.by_code[name].advice)


def test_no_name_is_mapped_that_the_client_has_not() -> None:
    ours = {"newer", "token-endpoint"}
    assert TABLE.by_code.keys() - ours <= CODES.keys()
    assert TABLE.by_code.keys() >= UNKNOWN_TARGET | PRODUCER_LOST | ours


def test_a_code_of_a_later_version_may_have_happened() -> None:
    found = classify(KafkaError(9999), "storing")
    assert (type(found), found.code) == (Ambiguous, Code.UNKNOWN)


def test_every_known_code_is_one_that_all_brokers_share() -> None:
    assert [name for name, rule in TABLE.by_code.items() if rule.code is Code.UNKNOWN] == ["newer"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("MSG_SIZE_TOO_LARGE", Code.TOO_LARGE),
        ("UNKNOWN_TOPIC_OR_PART", Code.NO_SUCH_DESTINATION),
        ("_UNKNOWN_PARTITION", Code.NO_SUCH_DESTINATION),
        ("_AUTHENTICATION", Code.NOT_AUTHENTICATED),
        ("TOPIC_AUTHORIZATION_FAILED", Code.NOT_AUTHORIZED),
        ("_MSG_TIMED_OUT", Code.DEADLINE_EXCEEDED),
        ("_TRANSPORT", Code.CONNECTION_LOST),
        ("THROTTLING_QUOTA_EXCEEDED", Code.THROTTLED),
        ("_QUEUE_FULL", Code.FULL),
    ],
)
def test_a_code_of_kafka_is_named_as_on_other_brokers(name: str, code: Code) -> None:
    found = classify(KafkaError(CODES[name]), "storing")
    assert (found.code, found.native_code) == (code, name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NOT_LEADER_FOR_PARTITION", Retriable),
        ("NOT_ENOUGH_REPLICAS", Retriable),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Ambiguous),
        ("REQUEST_TIMED_OUT", Ambiguous),
        ("_MSG_TIMED_OUT", Ambiguous),
        ("_PURGE_INFLIGHT", Ambiguous),
        ("_UNKNOWN_PARTITION", Permanent),
        ("SASL_AUTHENTICATION_FAILED", Fatal),
        ("TOPIC_AUTHORIZATION_FAILED", Fatal),
        ("UNKNOWN_TOPIC_OR_PART", Fatal),
        ("THROTTLING_QUOTA_EXCEEDED", Throttled),
    ],
)
def test_a_code_has_the_class_that_its_meaning_asks_for(name: str, kind: type[BrokerError]) -> None:
    assert type(classify(KafkaError(CODES[name]), "storing")) is kind


@pytest.mark.parametrize("name", ["MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "_INVALID_DIFFERENT_RECORD"])
def test_what_one_record_causes_is_its_own_only_where_it_was_alone(name: str) -> None:
    error = KafkaError(CODES[name])
    assert type(classify(error, "storing", rows=2)) is Unattributed
    assert type(classify(error, "storing", rows=1)) is Permanent


@pytest.mark.parametrize("name", sorted(ABOUT_TARGET))
def test_a_missing_topic_is_fatal_where_it_is_the_urls_own_and_a_rows_fault_else(name: str) -> None:
    error = KafkaError(CODES[name])
    assert type(classify(error, "storing", own=True)) is Fatal
    assert type(classify(error, "storing", own=False)) is Permanent


def test_reading_can_be_tried_again_where_sending_would_be_ambiguous() -> None:
    assert type(classify_reading(KafkaError(CODES["_TRANSPORT"]), "reading")) is Retriable
    assert type(classify_reading(KafkaError(CODES["_AUTHENTICATION"]), "reading")) is Fatal


def test_a_partition_that_is_not_there_is_a_rows_fault_but_where_no_row_names_one() -> None:
    error = KafkaError(CODES["_UNKNOWN_PARTITION"])
    assert type(classify(error, "storing")) is Permanent
    found = classify_reading(error, "reading")
    assert type(found) is Retriable
    assert "has no leader" in str(found)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Failed to connect to 127.0.0.1:1 after 0 ms: Could not connect to server", Retriable),
        ("Could not resolve host: nowhere.invalid", Retriable),
        ("Operation timed out after 20001 milliseconds with 0 bytes received", Retriable),
        ('{"error":"invalid_client", "error_description":"Could not connect you"}', Fatal),
        ("error adding trust anchors from file: ca-bundle.crt", Fatal),
    ],
)
def test_an_endpoint_that_is_not_reached_has_refused_nobody(said: str, kind: type[BrokerError]) -> None:
    """In the words of the client: it has no code for it."""
    error = KafkaError(CODES["_AUTHENTICATION"], f"Failed to acquire SASL OAUTHBEARER token: {said}")
    assert type(classify(error, "storing")) is kind
    assert is_refused(error) is (kind is Fatal)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BufferError("full"), Retriable),
        (TypeError("not bytes"), Permanent),
        (ValueError("odd"), Permanent),
        (OverflowError("large"), Permanent),
        (RuntimeError("closed"), Fatal),
        (NotImplementedError("old"), Fatal),
        (KafkaException("no code"), Fatal),
    ],
)
def test_what_the_clients_python_part_raises_is_mapped_too(error: Exception, kind: type[BrokerError]) -> None:
    assert isinstance(error, ERRORS)
    with pytest.raises(kind) as caught, while_doing("storing"):
        raise error
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error


def test_no_secret_of_a_clients_error_is_shown() -> None:
    error = KafkaError(CODES["_AUTHENTICATION"], "refused: sasl.password=hunter2")
    assert "hunter2" not in str(classify(error, "storing"))
