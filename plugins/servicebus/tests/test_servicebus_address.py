"""URLs and options: read without I/O, refused with what is wrong, and no secret is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.errors import ConfigurationError, InvalidURL, RedeliveryError, UnknownOption, Unsupported
from redelivery_servicebus import connect
from redelivery_servicebus.address import Address
from redelivery_servicebus.options import Login, Settings

SECRET = "c2VjcmV0LWtleS1vZi1vdXJz"  # noqa: S105 - what must not show
STRING = f"Endpoint=sb://orders.servicebus.windows.net/;SharedAccessKeyName=app;SharedAccessKey={SECRET}"
URL = "servicebus://orders.servicebus.windows.net/incoming"


def test_a_url_names_a_namespace_and_a_queue() -> None:
    address = Address.parse("servicebus://Orders.servicebus.windows.net/team/incoming")
    assert (address.namespace, address.queue) == ("orders.servicebus.windows.net", "team/incoming")
    assert Address.parse(address.url) == address
    assert address.dead_letters.queue == "team/incoming-dead-letters"
    assert address.dead_letters.dead_letters == address.dead_letters


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("servicebus:", "namespace"),
        ("servicebus:///q", "namespace"),
        ("servicebus://host", "missing"),
        ("servicebus://host/", "missing"),
        ("servicebus://host/q#x", "fragment"),
        ("servicebus://host/a b", "consists of"),
        ("servicebus://host/" + "q" * 261, "260"),
        ("servicebus://host/q/$DeadLetterQueue", "sub-queue"),
        ("servicebus://host/orders/Subscriptions/-mine", "a subscription cannot be sent to"),
        ("servicebus://host/orders/Subscriptions/mine?subscription=mine", "is already the subscription 'mine'"),
        (
            "servicebus://host/orders/Subscriptions/mine/$DeadLetterQueue",
            "a sub-queue cannot be named|cannot be sent to",
        ),
        ("servicebus://host/orders?subscription=", "name of a subscription"),
        ("servicebus://host/orders?subscription=a&subscription=b", "more than one"),
        ("servicebus://host/orders-dead-letters?subscription=a", "to one receiver"),
        ("servicebus://host/" + "q" * 245 + "?subscription=mine", "260"),
        ("servicebus://host/orders?session=a", "a single session cannot be named"),
    ],
)
def test_a_url_that_names_no_queue_is_refused_with_what_is_wrong(url: str, said: str) -> None:
    with pytest.raises(InvalidURL, match=said):
        Address.parse(url)


def test_a_user_or_a_parameter_in_the_url_is_refused() -> None:
    with pytest.raises(InvalidURL) as caught:
        Address.parse(f"servicebus://app:{SECRET}@host/q")
    assert SECRET not in str(caught.value)
    with pytest.raises(UnknownOption, match="ttl"):
        Address.parse("servicebus://host/q?ttl=1")


def test_a_subscription_is_a_queue_that_its_topic_feeds_and_the_url_says_both() -> None:
    url = connect("servicebus://host/team/orders", {"connection_string": STRING}).subscription("billing")
    assert url == "servicebus://host/team/orders?subscription=billing"
    address = Address.parse(url)
    assert (address.topic, address.native, address.queue) == ("team/orders", "billing", "team/orders.billing")
    assert address.dead_letters.url == "servicebus://host/team/orders.billing-dead-letters"
    assert address.at("other").url == "servicebus://host/other"


NAMES = st.sampled_from(["a", "A", "a.b", "b", "a-b", "-a", "a-dead-letters", "sha256-a", "x" * 51, "é"]) | st.text(
    "aA.-_/é", min_size=1, max_size=4
)


@given(st.tuples(st.sampled_from(["t", "t.a", "t.a.b"]), NAMES), st.tuples(st.sampled_from(["t", "t.a"]), NAMES))
def test_no_two_subscriptions_have_one_queue_and_service_bus_can_name_each(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    first, second = (Address("host", topic).subscription(name) for topic, name in (one, other))
    assert (first.queue.lower() == second.queue.lower()) == (one == other)
    assert not first.is_dead_letters
    assert Address.parse(first.url) == first
    assert len(first.native) <= 50
    assert first.native[0].isalnum()
    assert first.native[-1].isalnum()
    assert first.native.replace("-", "").replace("_", "").isalnum()


def test_a_subscription_of_a_subscription_or_of_a_queue_for_letters_is_refused() -> None:
    options = {"connection_string": STRING}
    with pytest.raises(ConfigurationError, match="already the subscription 'audit'"):
        connect("servicebus://host/orders?subscription=audit", options).subscription("billing")
    with pytest.raises(Unsupported, match="to one receiver"):
        connect("servicebus://host/orders-dead-letters", options).subscription("billing")


@given(st.text(max_size=40))
def test_whatever_is_written_as_a_url_is_read_or_refused_by_an_error_of_ours(rest: str) -> None:
    try:
        address = Address.parse(f"servicebus:{rest}")
    except RedeliveryError:
        return
    assert Address.parse(address.url) == address


def test_a_connection_string_says_who_we_are_and_the_url_where() -> None:
    settings = Settings.parse({"connection_string": STRING})
    assert settings.login is not None
    told = settings.login.connection_string("other.servicebus.windows.net")
    assert told == f"Endpoint=sb://other.servicebus.windows.net/;SharedAccessKeyName=app;SharedAccessKey={SECRET}"
    assert SECRET not in repr(settings)
    emulator = Login.parse(STRING + ";UseDevelopmentEmulator=true;")
    assert emulator.connection_string("localhost:5672").endswith(";UseDevelopmentEmulator=true")


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"Endpoint=sb://h/;{SECRET}",
        f"SharedAccessKeyName=app;SharedAccessKey={SECRET}",
        f"Endpoint=sb://h/;SharedAccessKey={SECRET}",
        f"Endpoint=sb://h/;SharedAccessKeyName=app;SharedAccessKey={SECRET};SharedAccessSignature={SECRET}",
        f"Endpoint=sb://h/;SharedAccesKey={SECRET}",
        f"Endpoint=sb://h/;SharedAccessKey={SECRET};SharedAccessKey={SECRET}",
    ],
)
def test_a_malformed_connection_string_is_told_and_never_shown(text: str) -> None:
    with pytest.raises(ConfigurationError, match="malformed") as caught:
        Settings.parse({"connection_string": text})
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_connection_string_of_one_queue_reaches_no_other() -> None:
    options = {"connection_string": f"{STRING};EntityPath=incoming"}
    connect(URL, options).close()
    with pytest.raises(ConfigurationError, match="'incoming' alone"):
        connect(URL + "-dead-letters", options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"credential": "mine"}, "credential must be default"),
        ({"transport_type": "tcp"}, "amqp or websockets"),
        ({"cloudevents_prefix": "ce-"}, "cloudEvents_ or cloudEvents:"),
        ({"duplicate_detection": "yes"}, "true or false"),
        ({"operation_timeout": "60"}, "0.1 to 25"),
        ({"max_message_bytes": "many"}, "65536"),
        ({"sas_key": SECRET}, "belong together"),
        (
            {"connection_string": STRING, "credential": "default"},
            "are two logins",
        ),
        ({"sas_token": ""}, "empty"),
    ],
)
def test_an_option_that_does_not_hold_is_named_with_what_it_takes(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        Settings.parse(options)
    assert SECRET not in str(caught.value)


def test_a_port_is_the_emulators() -> None:
    with pytest.raises(ConfigurationError, match="UseDevelopmentEmulator"):
        connect("servicebus://localhost:5672/q", {"connection_string": STRING})


def test_the_capabilities_are_those_of_the_options() -> None:
    plain = connect(URL, {"connection_string": STRING}).capabilities
    assert not plain.deduplicate
    assert plain.cloudevents_prefix == "cloudEvents_"
    options = {"duplicate_detection": "true", "duplicate_detection_window": "60", "cloudevents_prefix": "cloudEvents:"}
    other = connect(URL, {"connection_string": STRING, **options, "max_message_bytes": "1048576"}).capabilities
    assert other.deduplicate
    assert other.deduplication_window is not None
    assert other.deduplication_window.total_seconds() == 60
    assert other.cloudevents_prefix == "cloudEvents:"
    assert (other.limits.message_bytes or 0) > 1_000_000


def test_letters_of_two_topics_are_not_in_one_queue() -> None:
    """Names may have dots, and a dot is between the names of a topic and its subscription."""
    root = "servicebus://ns.servicebus.windows.net"
    dotted = Address.parse(f"{root}/orders/subscriptions/eu.billing").dead_letters.queue
    assert dotted != Address.parse(f"{root}/orders.eu/subscriptions/billing").dead_letters.queue
    assert dotted == Address.parse(f"{root}/orders/subscriptions/EU.billing").dead_letters.queue
    assert dotted.startswith("orders.sha256-")
