"""Spark options: one flat mapping that takes every name of both dialects."""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_spec import specs

from redelivery.contract.spec import FOREVER, UNLIMITED, DeliverySpec, Ref, Sink
from redelivery.errors import ConfigurationError, InvalidSpec, UnknownOption
from redelivery.formats.specs import options

A, B = "scheme://a/x", "file:///letters"


def as_read_back(spec: DeliverySpec) -> DeliverySpec:
    """Limits without a sink speak for an unsaid tolerance, so what it means is written out."""
    limited = spec.tolerance_limit is not None or spec.tolerance_rate_limit is not None
    if spec.tolerance is None and limited and not spec.dead_letter_sink:
        return replace(spec, tolerance="none")
    return spec


@given(specs())
def test_every_spec_is_read_back_as_it_was_written(spec: DeliverySpec) -> None:
    written = options.write(spec)
    assert options.read(written) == as_read_back(spec)
    assert all(isinstance(value, str) for value in written.values())
    assert all(options.is_spec_option(name) for name in written)


@given(specs(), st.sampled_from([str.lower, str.upper, str.title]))
def test_names_are_read_in_any_case(spec: DeliverySpec, case: Any) -> None:
    written = options.write(spec)
    assert options.read({case(name): value for name, value in written.items()}) == options.read(written)


def test_every_field_of_a_spec_has_an_option() -> None:
    everything = DeliverySpec(
        dead_letter_sink=(Sink(uri="native"),),
        retry=3,
        backoff_policy="linear",
        backoff_delay=timedelta(seconds=1),
        backoff_max=timedelta(minutes=1),
        backoff_profile="knative",
        timeout=timedelta(seconds=5),
        retry_after_max=timedelta(seconds=7),
        format="binary",
        retry_timeout=timedelta(minutes=5),
        tolerance="all",
        tolerance_limit=10,
        tolerance_rate_limit=5,
        tolerance_rate_duration="hour",
        log_enable=True,
        log_include_messages=False,
        log_include_configs=True,
        sink_context_headers=False,
        sink_include_messages=True,
        sink_include_configs=False,
        sink_partitions=4,
        sink_replication_factor=2,
        dead_letter_dialects=("connect", "knative"),
        dead_letter_type="com.example.dead",
        letter_key="env:LETTER_KEY",
        allow_skip=True,
    )
    unsaid = {each.name for each in fields(DeliverySpec) if getattr(everything, each.name) is None}
    assert unsaid == {"retry_delay_max"}
    written = {
        "deadLetterSink": "native",
        "retry": "3",
        "backoffPolicy": "linear",
        "backoffDelay": "PT1S",
        "backoffMax": "PT1M",
        "backoffProfile": "knative",
        "timeout": "PT5S",
        "retryAfterMax": "PT7S",
        "format": "binary",
        "errors.retry.timeout": "300000",
        "errors.tolerance": "all",
        "errors.tolerance.limit": "10",
        "errors.tolerance.rate.limit": "5",
        "errors.tolerance.rate.duration": "hour",
        "errors.log.enable": "true",
        "errors.log.include.messages": "false",
        "errors.log.include.configs": "true",
        "errors.deadletterqueue.context.headers.enable": "false",
        "errors.deadletterqueue.include.messages": "true",
        "errors.deadletterqueue.include.configs": "false",
        "errors.deadletterqueue.topic.partitions": "4",
        "errors.deadletterqueue.topic.replication.factor": "2",
        "deadLetterDialects": "connect,knative",
        "deadLetterType": "com.example.dead",
        "letterKey": "env:LETTER_KEY",
        "allowSkip": "true",
    }
    assert options.write(everything) == written
    assert options.read(written) == everything
    assert options.read({"errors.retry.delay.max.ms": "30000"}).retry_delay_max == timedelta(seconds=30)
    assert set(written) | {"errors.retry.delay.max.ms"} <= set(options.OPTIONS)


def test_no_options_are_a_spec_that_says_nothing() -> None:
    assert options.read({}) == DeliverySpec()
    assert options.write(DeliverySpec()) == {}


@pytest.mark.parametrize(
    ("text", "sinks"),
    [
        ("native", (Sink(uri="native"),)),
        ("letters", (Sink(uri="letters"),)),
        (A, (Sink(uri=A),)),
        ("scheme://a,b/x,y?z=[1]", (Sink(uri="scheme://a,b/x,y?z=[1]"),)),
        (f"native {A}\n  {B} ", (Sink(uri="native"), Sink(uri=A), Sink(uri=B))),
        (f'["native", "letters", "{B}"]', (Sink(uri="native"), Sink(uri="letters"), Sink(uri=B))),
        ('{"uri": "letters", "options": {"acks": "all"}}', (Sink(uri="letters", options={"acks": "all"}),)),
        ('{"ref": {"kind": "Queue", "name": "x"}, "uri": "y"}', (Sink(uri="y", ref=Ref(kind="Queue", name="x")),)),
    ],
)
def test_a_dead_letter_sink_is_one_place_several_or_json(text: str, sinks: tuple[Sink, ...]) -> None:
    assert options.read({"deadLetterSink": text}).dead_letter_sink == sinks


@pytest.mark.parametrize("text", ["Native", "nativ", "true", "none"])
def test_a_sink_that_is_hardly_the_name_of_a_queue_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match=rf"deadLetterSink: '{text}' would be a queue .*; write 'native'"):
        options.read({"deadLetterSink": text})
    meant = DeliverySpec(dead_letter_sink=(Sink(uri=text),))
    assert options.read(options.write(meant)) == meant


def test_a_url_with_a_space_is_not_taken_for_a_chain() -> None:
    with pytest.raises(InvalidSpec, match=r"deadLetterSink: 'letters'.*%20.*JSON list"):
        options.read({"deadLetterSink": "file:///my letters"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"retry": "3"}, {"errors.retry.limit": "3"}),
        ({"retry": "3"}, {"errors.retries.limit": "3"}),
        ({"retry": "3"}, {"RETRY": "4"}),
        ({"backoffMax": "PT1S"}, {"errors.retry.delay.max.ms": "1000"}),
        ({"deadLetterSink": A}, {"errors.deadletterqueue.topic.name": "letters"}),
        ({"deadLetterSink": A}, {"errors.dlq.topic.name": "letters"}),
        ({"deadLetterSink": A}, {"errors.deadletterqueue.enable": "true"}),
        ({"deadLetterSink": A}, {"errors.dlq.producer.acks": "all"}),
        ({"errors.deadletterqueue.topic.name": "letters"}, {"errors.dlq.topic.name": "letters"}),
        ({"errors.tolerance.rate.duration": "minute"}, {"errors.tolerance.rate.duration.ms": "60000"}),
    ],
)
def test_one_thing_said_in_two_dialects_is_refused_naming_both(one: dict[str, str], other: dict[str, str]) -> None:
    for both in ({**one, **other}, {**other, **one}):
        with pytest.raises(InvalidSpec) as caught:
            options.read(both)
        assert all(name in str(caught.value) for name in both)


MALFORMED = [
    ("retry", "-1", "0 to 2147483647"),
    ("retry", "2147483648", "0 to 2147483647"),
    ("retry", "three", "as in '3'"),
    ("retry", "3.0", "as in '3'"),
    ("retry", "1_000", "as in '3'"),
    ("retry", "٣", "as in '3'"),
    ("retry", "", "as in '3'"),
    ("retry", "9" * 10000, "as in '3'"),
    ("errors.retry.limit", "-2", "-1: no limit"),
    ("errors.retry.timeout", "-2", "-1: forever"),
    ("errors.retry.timeout", "PT5S", "milliseconds"),
    ("errors.retry.delay.max.ms", "0", "from 1"),
    ("errors.tolerance", "ALL", "none, all"),
    ("errors.tolerance.limit", "-2", "-1: no limit"),
    ("errors.tolerance.rate.duration", "week", "minute, hour, day"),
    ("errors.tolerance.rate.duration.ms", "5000", "60000"),
    ("errors.log.enable", "yes", "'true' or 'false'"),
    ("errors.deadletterqueue.enable", "1", "'true' or 'false'"),
    ("errors.deadletterqueue.topic.partitions", "0", "from 1"),
    ("errors.deadletterqueue.topic.replication.factor", "32768", "to 32767"),
    ("allowSkip", "", "'true' or 'false'"),
    ("deadLetterType", "", "must not be empty"),
    ("deadLetterDialects", "connect,smoke", "must be some of connect, knative, knativeerror, deadletter, json"),
    ("deadLetterDialects", "json,json", "each once"),
    ("deadLetterDialects", "", "as in 'connect,knative'"),
    ("backoffDelay", "5s", "'PT5S'"),
    ("backoffDelay", "-PT5S", "negative"),
    ("backoffDelay", "P1M", "'P30D'"),
    ("timeout", "PT0S", "more than 0"),
    ("backoffPolicy", "constant", "linear, exponential"),
    ("backoffProfile", "exponential", "knative, knative-code, connect"),
    ("format", "avro", "json, binary"),
    ("deadLetterSink", "", "'native'"),
    ("deadLetterSink", "{", "not valid YAML or JSON"),
    ("deadLetterSink", '{"uri": ""}', "give a uri"),
    ("deadLetterSink", '{"uri": "a b"}', "%20"),
    ("deadLetterSink", '{"uri": "a", "uri": "b"}', "twice"),
    ("deadLetterSink", '{"uri": "x:y", "ref": {"kind": "k", "name": "n"}}', "relative"),
]


@pytest.mark.parametrize(("name", "value", "hint"), MALFORMED)
def test_a_malformed_value_is_refused_naming_the_option_and_what_is_right(name: str, value: str, hint: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        options.read({name: value})
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert hint in message
    assert len(message) < 400


@given(st.sampled_from(sorted(options.OPTIONS)), st.text())
def test_any_text_is_either_read_or_refused_by_a_configuration_error(name: str, value: str) -> None:
    with contextlib.suppress(ConfigurationError):
        options.read({name: value})


@pytest.mark.parametrize("name", sorted(set(options.OPTIONS) - {"errors.deadletterqueue.producer.*"}))
def test_no_error_shows_a_password(name: str) -> None:
    for value in (
        "scheme://user:hunter2@host/a b c",
        "password=hunter2",
        '{"options": {"ssl.key.password": "hunter2"}}',
    ):
        with pytest.raises(ConfigurationError) as caught:
            options.read({name: value, "errors.deadletterqueue.enable" if "topic.name" in name else "x": "maybe"})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("retries", "retry"),
        ("backofDelay", "backoffDelay"),
        ("errors.retry.timout", "errors.retry.timeout"),
        ("errors.tolerence", "errors.tolerance"),
        ("deadLetterSinks", "deadLetterSink"),
        ("errors.deadletterqueue.topic", "errors.deadletterqueue.topic.name"),
        ("errors.dlq.include.message", "errors.dlq.include.messages"),
    ],
)
def test_an_unknown_option_is_refused_naming_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownOption, match=f"unknown option '{name}'; did you mean '{nearest}'"):
        options.read({name: "1"})


def test_the_older_names_mean_the_same() -> None:
    older = {"errors.retries.limit": "-1", "errors.retries.delay.max.ms": "5", "errors.dlq.topic.name": "letters"}
    spec = options.read(older)
    assert (spec.retry, spec.retry_delay_max) == (UNLIMITED, timedelta(milliseconds=5))
    assert spec.dead_letter_sink == (Sink(uri="letters"),)


def test_numbers_and_flags_may_come_as_such() -> None:
    given: dict[str, Any] = {"retry": 3, "allowSkip": True, "errors.retry.timeout": -1}
    assert options.read(given) == DeliverySpec(retry=3, allow_skip=True, retry_timeout=FOREVER)
    for wrong in (None, 1.5, [1]):
        given = {"retry": wrong}
        with pytest.raises(InvalidSpec, match="retry: must be text, a whole number"):
            options.read(given)


def test_tolerance_stays_unsaid_where_the_sink_is_named_by_deadlettersink() -> None:
    for limits in ({}, {"errors.tolerance.limit": "0"}, {"errors.tolerance.limit": "9"}):
        spec = options.read({"deadLetterSink": A, **limits})
        assert spec.tolerance is None
        assert spec.tolerates


def test_what_no_option_can_say_is_refused_when_written() -> None:
    with pytest.raises(InvalidSpec, match=r"errors\.retry\.timeout: .*whole milliseconds"):
        options.write(DeliverySpec(retry_timeout=timedelta(microseconds=1)))
    with pytest.raises(InvalidSpec, match=r"backoffMax and errors\.retry\.delay\.max\.ms"):
        options.write(DeliverySpec(backoff_max=timedelta(seconds=1), retry_delay_max=timedelta(seconds=1)))
    with pytest.raises(InvalidSpec, match="%20"):
        options.write(DeliverySpec(dead_letter_sink=(Sink(uri="file:///my letters"),)))


def test_only_options_of_a_spec_are_claimed() -> None:
    assert options.is_spec_option("BACKOFFdelay")
    assert options.is_spec_option("errors.anything")
    assert options.is_spec_option("errors.dlq.producer.acks")
    for other in ("url", "broker.acks", "deadLetters", "writeId"):
        assert not options.is_spec_option(other)
