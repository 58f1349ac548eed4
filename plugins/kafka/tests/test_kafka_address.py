"""The URL and the options of `kafka:`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redelivery.base.urls import redact_options
from redelivery.errors import ConfigurationError, InvalidURL, UnknownOption
from redelivery.registry import connect
from redelivery_kafka.address import Address, topic_fault
from redelivery_kafka.broker import KafkaBroker
from redelivery_kafka.client import instances
from redelivery_kafka.client.known_settings import CONSUMER_ONLY, JAVA_ONLY, KNOWN, OPTIONS, PRODUCER_ONLY, RESERVED
from redelivery_kafka.options import Settings

topics = st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})
hosts = st.from_regex(r"[a-z][a-z0-9-]{0,9}(\.[a-z0-9]{1,5})?(:[1-9][0-9]{0,3})?", fullmatch=True)


@settings(deadline=None)  # a busy machine may be slow
@given(st.lists(hosts, min_size=1, max_size=3), topics, st.text(min_size=1, max_size=9))
def test_a_kafka_url_names_what_it_was_made_of(servers: list[str], topic: str, group: str) -> None:
    address = Address.parse(f"kafka://{','.join(servers)}/{topic}")
    assert address.topic == topic
    assert address.bootstrap == ",".join(each if ":" in each else f"{each}:9092" for each in servers)
    named = Address(address.bootstrap, topic, group)
    assert Address.parse(named.url) == named


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "a" * 250, "a\n", "a\0"])
def test_a_name_that_no_topic_can_have_is_refused_everywhere(name: str) -> None:
    assert topic_fault(name)
    with pytest.raises(ConfigurationError, match="topic"):
        Address("h:1", "t").at(name)
    if name.isprintable():
        with pytest.raises(InvalidURL, match="topic"):
            Address.parse(f"kafka://h/{name}")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("kafka:///t", "names no host"),
        ("kafka:t", "names no host"),
        ("kafka://h:0/t", "host:port"),
        ("kafka://h:99999/t", "host:port"),
        ("kafka://h:port/t", "host:port"),
        ("kafka://h,/t", "host:port"),
        ("kafka://h/t#x", "#"),
        ("kafka://h/t?group=", "group"),
        ("kafka://h/t?group=a&group=b", "twice"),
    ],
)
def test_a_wrong_kafka_url_says_what_is_wrong(url: str, word: str) -> None:
    with pytest.raises(InvalidURL, match=word):
        Address.parse(url)


def test_an_unknown_parameter_of_a_kafka_url_names_the_nearest() -> None:
    with pytest.raises(UnknownOption, match="'group'"):
        Address.parse("kafka://h/t?groop=x")


def test_credentials_in_a_kafka_url_are_refused_and_not_shown() -> None:
    with pytest.raises(InvalidURL, match=r"sasl\.password") as caught:
        connect("kafka://someone:hunter2@h/t")
    assert "hunter2" not in str(caught.value)


def test_an_address_in_brackets_is_a_host() -> None:
    assert Address.parse("kafka://[::1],[fe80::1]:9093/t").bootstrap == "[::1]:9092,[fe80::1]:9093"


def test_the_servers_may_be_an_option_which_wins() -> None:
    broker = connect("kafka:///t", {"kafka.bootstrap.servers": "a, b:9093"})
    assert isinstance(broker, KafkaBroker)
    assert broker.address.bootstrap == "a:9092,b:9093"
    assert broker.native_sink() == "kafka://a:9092,b:9093/t-dead-letters"
    broker = connect("kafka://a/t", {"kafka.bootstrap.servers": "b"})
    assert isinstance(broker, KafkaBroker)
    assert broker.address.bootstrap == "b:9092"


def test_a_dead_letter_topic_is_its_own() -> None:
    letters = Address.parse("kafka://h/t?group=g").dead_letters
    assert letters == Address("h:9092", "t-dead-letters", "g")
    assert letters.dead_letters is letters


def test_a_subscription_is_a_group_that_no_other_topic_has() -> None:
    url = connect("kafka://h/a").subscription("b.c d")
    assert url == "kafka://h:9092/a?group=redelivery.a%3Ab.c%20d"
    assert Address.parse(url).group == "redelivery.a:b.c d"
    assert Address.parse("kafka://h/a.b").group != Address.parse("kafka://h/a").subscription("b").group


def test_a_url_that_names_a_group_is_a_subscriptions_already() -> None:
    """Two names would share that group, and each miss what the other takes."""
    with pytest.raises(ConfigurationError, match="names the group 'g'"):
        connect("kafka://h/a?group=g").subscription("billing")


@pytest.mark.parametrize("name", sorted(JAVA_ONLY))
def test_a_setting_of_javas_client_is_refused_with_what_stands_for_it(name: str) -> None:
    with pytest.raises(UnknownOption, match=r"setting of Java.s client; .") as caught:
        connect("kafka://h/t", {f"kafka.{name}": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_setting_that_a_promise_rests_on_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"kafka.{name} cannot be set")):
        Settings.parse({name: "true"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.auto.commit", "False"),
        ("auto.offset.reset", "earliest"),
        ("allow.auto.create.topics", "false"),
        ("acks", "all"),
        ("acks", "-1"),
        ("request.required.acks", "all"),
    ],
)
def test_a_setting_that_changes_nothing_is_taken(name: str, value: str) -> None:
    assert Settings.parse({name: value}).values == {name: value}


@pytest.mark.parametrize("name", ["error_cb", "oauth_cb", "rebalance_cb", "anything_cb"])
def test_a_function_cannot_be_an_option(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be set"):
        Settings.parse({name: "true"})


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"acks": "0"}, "no broker has confirmed"),
        ({"acks": "1"}, r"enable\.idempotence=false"),
        *(
            ({name: value, "enable.idempotence": "false"}, "no broker has confirmed")
            for name in ("acks", "request.required.acks")
            for value in ("0", "00", "+0", "-0", "0 ", " 0", "0x0", "01", "", "some")
        ),
        ({"auto.offset.reset": "latest"}, "--reset-offsets"),
        ({"session.timeout.ms": "60000"}, r"Subscription\(.*lease="),
        ({"allow.auto.create.topics": "true"}, "redelivery apply"),
        ({"linger.ms": "-1"}, "range"),
        ({"security.protocol": "tls"}, "security.protocol"),
        ({"message.max.bytes": "many"}, "message.max.bytes"),
        ({"sasl.mechanism": "NONE", "security.protocol": "sasl_ssl"}, "NONE"),
    ],
)
def test_a_wrong_value_of_a_setting_is_told(options: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        instances.producer(Settings.parse(options), Address("localhost:1", "t"))


def test_a_token_endpoint_that_is_no_url_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.sasl\.oauthbearer\.token\.endpoint\.url is not a URL"):
        connect("kafka://h/t", {"kafka.sasl.oauthbearer.token.endpoint.url": "https://me:hunter2@[::1"})


def test_settings_never_show_their_values() -> None:
    settings = Settings.parse({"sasl.password": "hunter2", "sasl.username": "me", "sasl.mechanism": "PLAIN"})
    assert "hunter2" not in repr(settings)
    shown = redact_options({f"kafka.{name}": value for name, value in settings.values.items()})
    assert shown == {"kafka.sasl.password": "***", "kafka.sasl.username": "me", "kafka.sasl.mechanism": "PLAIN"}


def test_every_setting_that_we_name_is_one_of_the_library() -> None:
    """An older or newer library that lacks one is found here, not by a user."""
    for name in sorted(KNOWN):
        try:
            Settings.parse({name: "1"})
        except UnknownOption as error:
            raise AssertionError(f"the library does not know {name}") from error
        except ConfigurationError:
            pass  # it knows the name, and rejects "1" as its value


def test_our_lists_of_settings_do_not_overlap() -> None:
    assert not PRODUCER_ONLY & CONSUMER_ONLY
    assert not JAVA_ONLY.keys() & (KNOWN | RESERVED.keys())
    assert not OPTIONS.keys() & RESERVED.keys()
