"""Connect's properties: the final text, the older one, and the defaults that they keep."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from strategies_spec import specs

from redelivery.contract.spec import FOREVER, UNLIMITED, DeliverySpec, Ref, Sink
from redelivery.errors import ConfigurationError, InvalidSpec, UnknownOption
from redelivery.formats.specs import connect, options

TOPIC = "errors.deadletterqueue.topic.name"
TO_LETTERS = (Sink(uri="my-connector-errors"),)

#: The examples of the seed, older text and final text.
OLDER_FAIL_FAST = {
    "errors.retries.limit": "0",
    "errors.log.enable": "false",
    "errors.dlq.enable": "false",
    "errors.tolerance.limit": "0",
}
OLDER_RECORD_AND_SKIP = {
    "errors.retries.limit": "100",
    "errors.retries.delay.max.ms": "300000",
    "errors.log.enable": "true",
    "errors.log.include.configs": "false",
    "errors.log.include.messages": "false",
    "errors.dlq.enable": "true",
    "errors.dlq.topic.name": "my-connector-errors",
    "errors.dlq.topic.partitions": "25",
    "errors.dlq.topic.replication.factor": "3",
    "errors.dlq.include.configs": "true",
    "errors.dlq.include.messages": "true",
    "errors.tolerance.limit": "-1",
    "errors.tolerance.rate.limit": "-1",
    "errors.tolerance.rate.duration.ms": "60000",
}
PRODUCER = {
    "bootstrap.servers": "secure-broker:9093",
    "acks": "0",
    "security.protocol": "SSL",
    "ssl.truststore.location": "/var/private/ssl/client.truststore.jks",
    "ssl.truststore.password": "test1234",
}
FINAL_FAIL_FAST = {"errors.retry.timeout": "0", "errors.log.enable": "false", TOPIC: "", "errors.tolerance": "none"}
FINAL_RECORD_AND_SKIP = {
    "errors.retry.timeout": "600000",
    "errors.retry.delay.max.ms": "30000",
    "errors.log.enable": "true",
    "errors.log.include.messages": "false",
    TOPIC: "my-connector-errors",
    "errors.tolerance": "all",
}
RECORDED_AND_SKIPPED = DeliverySpec(
    retry=100,
    retry_delay_max=timedelta(minutes=5),
    log_enable=True,
    log_include_configs=False,
    log_include_messages=False,
    dead_letter_sink=TO_LETTERS,
    sink_partitions=25,
    sink_replication_factor=3,
    sink_include_configs=True,
    sink_include_messages=True,
    tolerance="all",
    tolerance_limit=UNLIMITED,
    tolerance_rate_limit=UNLIMITED,
    tolerance_rate_duration="minute",
)


def test_the_examples_of_the_older_text_are_read() -> None:
    fail_fast = DeliverySpec(retry=0, log_enable=False, tolerance="none", tolerance_limit=0)
    assert connect.read(OLDER_FAIL_FAST) == fail_fast
    assert connect.read(OLDER_RECORD_AND_SKIP) == RECORDED_AND_SKIPPED
    elsewhere = {**OLDER_RECORD_AND_SKIP, **{f"errors.dlq.producer.{name}": value for name, value in PRODUCER.items()}}
    there = (Sink(uri="my-connector-errors", options=PRODUCER),)
    assert connect.read(elsewhere) == replace(RECORDED_AND_SKIPPED, dead_letter_sink=there)


def test_the_examples_of_the_final_text_are_read() -> None:
    assert connect.read(FINAL_FAIL_FAST) == DeliverySpec(retry_timeout=timedelta(0), log_enable=False, tolerance="none")
    assert connect.read(FINAL_RECORD_AND_SKIP) == DeliverySpec(
        retry_timeout=timedelta(minutes=10),
        retry_delay_max=timedelta(seconds=30),
        log_enable=True,
        log_include_messages=False,
        dead_letter_sink=TO_LETTERS,
        tolerance="all",
    )


def test_the_names_of_the_older_tables_are_read() -> None:
    spec = connect.read({
        "errors.retry.limit": "-1",
        "errors.deadletterqueue.enable": "true",
        TOPIC: "letters",
        "errors.deadletterqueue.topic.partitions": "5",
        "errors.deadletterqueue.include.configs": "true",
        "errors.deadletterqueue.include.messages": "false",
        "errors.deadletterqueue.context.headers.enable": "true",
        "errors.deadletterqueue.producer.acks": "all",
        "errors.tolerance.limit": "7",
        "errors.tolerance.rate.limit": "3",
        "errors.tolerance.rate.duration": "day",
    })  # fmt: skip
    assert spec == DeliverySpec(
        retry=UNLIMITED,
        dead_letter_sink=(Sink(uri="letters", options={"acks": "all"}),),
        sink_partitions=5,
        sink_include_configs=True,
        sink_include_messages=False,
        sink_context_headers=True,
        tolerance="all",
        tolerance_limit=7,
        tolerance_rate_limit=3,
        tolerance_rate_duration="day",
    )


def as_read_back(spec: DeliverySpec) -> DeliverySpec:
    """What an unsaid tolerance means is written out, where Connect's own default or the limits would speak for it."""
    plain = len(spec.dead_letter_sink) == 1 and all(s.ref is None and s.type is None for s in spec.dead_letter_sink)
    limited = spec.tolerance_limit is not None or spec.tolerance_rate_limit is not None
    if spec.tolerance is None and (plain or (limited and not spec.dead_letter_sink)):
        return replace(spec, tolerance="all" if spec.tolerates else "none")
    return spec


@given(specs())
def test_every_spec_is_read_back_as_it_was_written(spec: DeliverySpec) -> None:
    written = connect.write(spec)
    assert connect.read(written) == as_read_back(spec)
    assert connect.read(written).tolerates == spec.tolerates
    assert all(isinstance(value, str) for value in written.values())
    assert all(name.startswith(("errors.", "redelivery.")) for name in written)


@given(specs())
def test_an_errors_property_means_the_same_as_an_option(spec: DeliverySpec) -> None:
    written = {name: value for name, value in connect.write(spec).items() if name.startswith("errors.")}
    if TOPIC in written or spec == DeliverySpec():
        assert connect.read(written) == options.read(written)


@pytest.mark.parametrize("fields", [{}, {"errors.retry.timeout": "5"}, {"errors.deadletterqueue.enable": "true"}])
def test_a_sink_alone_tolerates_nothing(fields: dict[str, str]) -> None:
    spec = connect.read({TOPIC: "letters", **fields})
    assert spec.tolerance == "none"
    assert not spec.tolerates


@pytest.mark.parametrize(
    ("limits", "tolerance"),
    [
        ({"errors.tolerance.limit": "0"}, "none"),
        ({"errors.tolerance.limit": "1"}, "all"),
        ({"errors.tolerance.limit": "-1"}, "all"),
        ({"errors.tolerance.rate.limit": "1"}, "all"),
        ({"errors.tolerance.limit": "5", "errors.tolerance.rate.limit": "0"}, "none"),
        ({"errors.tolerance.limit": "5", "errors.tolerance": "none"}, "none"),
        ({"errors.tolerance.limit": "0", "errors.tolerance": "all"}, "all"),
    ],
)
def test_the_limits_of_the_older_text_speak_for_an_unsaid_tolerance(limits: dict[str, str], tolerance: str) -> None:
    assert connect.read({TOPIC: "letters", **limits}).tolerance == tolerance


@pytest.mark.parametrize("limits", [{"errors.tolerance": "all"}, {"errors.tolerance.limit": "-1"}])
def test_tolerance_without_a_sink_must_be_permitted(limits: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec, match="allowSkip"):
        connect.read(limits)
    spec = connect.read({**limits, "redelivery.allowSkip": "true"})
    assert (spec.tolerance, spec.allow_skip) == ("all", True)


@pytest.mark.parametrize(
    ("text", "budget"),
    [("-1", FOREVER), ("0", timedelta(0)), ("1", timedelta(milliseconds=1)), (str(2**63 - 1), FOREVER)],
)
def test_a_retry_timeout_is_for_ever_never_or_milliseconds(text: str, budget: timedelta) -> None:
    assert connect.read({"errors.retry.timeout": text}).retry_timeout == budget


def test_for_ever_and_no_limit_are_written_as_minus_one() -> None:
    spec = DeliverySpec(retry=UNLIMITED, retry_timeout=FOREVER, tolerance="none", tolerance_limit=UNLIMITED)
    assert connect.write(spec) == {
        "errors.retry.limit": "-1",
        "errors.retry.timeout": "-1",
        "errors.tolerance": "none",
        "errors.tolerance.limit": "-1",
    }


def test_unset_is_not_zero() -> None:
    assert connect.read({}).retry_timeout is None
    assert connect.write(DeliverySpec()) == {}
    assert connect.write(DeliverySpec(retry_timeout=timedelta(0))) == {"errors.retry.timeout": "0"}


def test_names_are_read_in_any_case_and_client_settings_keep_theirs() -> None:
    assert connect.read({name.upper(): value for name, value in FINAL_RECORD_AND_SKIP.items()}) == connect.read(
        FINAL_RECORD_AND_SKIP
    )
    spec = connect.read({TOPIC.upper(): "Letters", "ERRORS.DLQ.PRODUCER.sasl.Mechanism": "PLAIN "})
    assert spec.dead_letter_sink == (Sink(uri="Letters", options={"sasl.Mechanism": "PLAIN "}),)


def test_a_sink_that_is_turned_off_is_none_whatever_else_is_said_of_it() -> None:
    off = {"errors.deadletterqueue.enable": "false", TOPIC: "letters", "errors.deadletterqueue.producer.acks": "all"}
    assert connect.read(off).dead_letter_sink == ()
    with pytest.raises(InvalidSpec, match=r"errors\.deadletterqueue\.enable: must be 'true' or 'false'"):
        connect.read({**off, "errors.deadletterqueue.enable": "no"})


@pytest.mark.parametrize("asking", ["errors.deadletterqueue.enable", "errors.dlq.producer.acks"])
def test_a_sink_that_is_asked_for_but_not_named_is_refused(asking: str) -> None:
    with pytest.raises(InvalidSpec, match=f"{asking} asks for a sink, but {TOPIC}"):
        connect.read({asking: "true"})


def test_a_sink_that_is_turned_on_with_an_empty_name_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"errors\.deadletterqueue\.enable asks for a sink"):
        connect.read({"errors.deadletterqueue.enable": "true", TOPIC: ""})


def test_spaces_around_a_value_do_not_count() -> None:
    spec = connect.read({"errors.retry.timeout": " 5 ", "errors.tolerance": "all ", TOPIC: " letters "})
    assert spec == DeliverySpec(
        retry_timeout=timedelta(milliseconds=5), tolerance="all", dead_letter_sink=(Sink(uri="letters"),)
    )


def test_a_sink_without_a_scheme_is_left_for_the_destination_to_resolve() -> None:
    (sink,) = connect.read({TOPIC: "letters.v2"}).dead_letter_sink
    assert sink == Sink(uri="letters.v2")


def test_what_connect_has_no_word_for_goes_under_a_prefix_of_ours() -> None:
    chain = (Sink(uri="native"), Sink(ref=Ref(kind="Queue", name="x")))
    spec = DeliverySpec(dead_letter_sink=chain, backoff_delay=timedelta(seconds=5), retry=2, allow_skip=True)
    assert connect.write(spec) == {
        "errors.retry.limit": "2",
        "redelivery.backoffDelay": "PT5S",
        "redelivery.allowSkip": "true",
        "redelivery.deadLetterSink": '[{"uri": "native"}, {"ref": {"kind": "Queue", "name": "x"}}]',
    }


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("errors.retry.timeot", "errors.retry.timeout"),
        ("errors.dlq.topic.nam", "errors.dlq.topic.name"),
        ("error.tolerance", "errors.tolerance"),
        ("redelivery.backofDelay", "redelivery.backoffDelay"),
        ("redelivery.retry", None),
        ("retry", None),
        ("connector.class", None),
        ("errors.deadletterqueue.producer.", None),
    ],
)
def test_an_unknown_property_is_refused_naming_the_nearest(name: str, nearest: str | None) -> None:
    with pytest.raises(UnknownOption, match=f"unknown property '{name}'") as caught:
        connect.read({name: "1"})
    assert nearest is None or f"did you mean '{nearest}'" in str(caught.value)


@pytest.mark.parametrize(
    ("properties", "both"),
    [
        ({TOPIC: "a", "redelivery.deadLetterSink": "b"}, (TOPIC, "redelivery.deadLetterSink")),
        (
            {"errors.retry.delay.max.ms": "1", "redelivery.backoffMax": "PT1S"},
            ("errors.retry.delay.max.ms", "redelivery.backoffMax"),
        ),
        ({"errors.retry.limit": "1", "errors.retries.limit": "1"}, ("errors.retry.limit", "errors.retries.limit")),
        (
            {TOPIC: "a", "errors.dlq.producer.acks": "1", "errors.deadletterqueue.producer.acks": "1"},
            ("errors.dlq.producer.acks", "errors.deadletterqueue.producer.acks"),
        ),
    ],
)
def test_one_thing_said_twice_is_refused_naming_both(properties: dict[str, str], both: tuple[str, str]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        connect.read(properties)
    assert all(name in str(caught.value) for name in both)


def test_no_error_shows_a_client_setting() -> None:
    wrong: dict[str, Any] = {
        "errors.dlq.producer.ssl.key.password": "hunter2",
        "errors.dlq.producer.SSL.key.password": ["hunter2"],
        TOPIC: "letters",
    }
    with pytest.raises(ConfigurationError) as caught:
        connect.read(wrong)
    assert "hunter2" not in str(caught.value)


def test_a_sink_does_not_show_its_secrets() -> None:
    sink = Sink(uri="scheme://user:hunter2@host/x", options={"ssl.key.password": "hunter2", "acks": "all"})
    assert "hunter2" not in repr(DeliverySpec(dead_letter_sink=(sink,)))
    assert "acks" in repr(sink)
