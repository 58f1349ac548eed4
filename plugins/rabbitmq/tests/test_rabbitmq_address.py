"""The meaning of URLs and options, and that secrets in them are never shown."""

import ssl
import traceback

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.base.urls import redact
from redelivery.contract.spec import Ref
from redelivery.errors import ConfigurationError, InvalidURL, UnknownOption, Unsupported
from redelivery.registry import connect
from redelivery_rabbitmq.address import Address, Binding
from redelivery_rabbitmq.client.parameters import connection_parameters
from redelivery_rabbitmq.options import Settings, settings_of

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
SECRET = "s3cr3t"  # noqa: S105 - a made-up one

OTHER = {"username": "other", "password": "else"}


def settings(**options: str) -> Settings:
    return settings_of({name.replace("__", "."): value for name, value in options.items()})


@given(TEXT, TEXT, TEXT, TEXT, st.booleans())
def test_what_a_url_is_made_of_comes_back(vhost, user, password, queue, tls):
    address = Address(vhost=vhost, username=user, password=password, queue=queue, routing_key=queue, tls=tls, port=1)
    assert Address.parse(address.full_url) == address


@given(TEXT, TEXT)
def test_the_password_is_in_no_text_but_the_full_url(user, password):
    address = Address(username=user, password=f"{SECRET}{password}", queue="q", routing_key="q")
    assert SECRET not in address.url + repr(address) + str(address)
    assert SECRET not in redact(address.full_url)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("amqp://h?queue=q", Address(host="h", queue="q", routing_key="q")),
        ("rabbitmq://h/?queue=q", Address(host="h", queue="q", routing_key="q")),
        ("amqps://h/a%2Fb?queue=q", Address(host="h", port=5671, tls=True, vhost="a/b", queue="q", routing_key="q")),
        ("amqp://[::1]:5/v?exchange=e", Address(host="::1", port=5, vhost="v", exchange="e")),
        ("amqp://h?exchange=e&routing_key=k&queue=q", Address(host="h", queue="q", exchange="e", routing_key="k")),
        ("AMQP://h?queue=q&heartbeat=5", Address(host="h", queue="q", routing_key="q", parameters={"heartbeat": "5"})),
    ],
)
def test_a_url_is_read(url, address):
    assert Address.parse(url) == address


@pytest.mark.parametrize("mark", ["/", "#", "@", "?", ":x/", " /", "[", "%"])
@pytest.mark.parametrize("rest", ["@h/v?queue=q", "@h?queue=q", "9@h:5/v?queue=q"])
@pytest.mark.parametrize("begin", ["12", SECRET])
def test_an_unescaped_password_is_refused_without_being_shown(mark, rest, begin):
    """Never taken for a host, a port or a virtual host, whatever it begins with."""
    url = f"rabbitmq://user:{begin}{mark}{SECRET}{rest}"
    if mark != "%":  # read as itself where no digits follow
        with pytest.raises(ConfigurationError) as caught:
            Address.parse(url)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    else:
        address = Address.parse(url)
        assert (address.host, (address.password or "")[: len(begin)]) == ("h", begin)


@pytest.mark.parametrize("url", ["amqp://u:p@h/v/w?queue=q", "amqp://u:1/p@h?queue=q", "amqp://u:1#p@h?queue=q"])
def test_a_mark_where_none_can_be_says_how_it_is_escaped(url):
    with pytest.raises(InvalidURL, match="%2F"):
        Address.parse(url)


@pytest.mark.parametrize(
    "rest", ["//h", "//h/v", "//?queue=q", "//h?routing_key=k", "//h?queue=", "//h?queue=a&queue=b", "//h/%00?queue=q"]
)
def test_a_url_that_names_no_destination_is_refused(rest):
    with pytest.raises(InvalidURL, match="rabbitmq: "):
        Address.parse(f"rabbitmq:{rest}")


def test_an_unknown_parameter_names_the_nearest():
    with pytest.raises(UnknownOption, match="heartbeat"):
        Address.parse("amqp://h?queue=q&heartbeet=1")


def test_names_longer_than_amqp_can_write_are_refused():
    for name in ("queue", "exchange"):
        with pytest.raises(InvalidURL, match="255"):
            Address.parse(f"amqp://h?{name}={'x' * 256}")


def test_dead_letters_of_an_exchange_need_a_queue():
    broker = connect("amqp://h?exchange=e")
    for ask in (broker.native_sink, broker.receiver, broker.admin, broker.dead_letters):
        with pytest.raises(ConfigurationError, match="queue"):
            ask()


def test_the_dead_letter_place_is_its_own():
    place = Address.parse("amqp://h?queue=q").dead_letters
    assert (place.queue, place.dead_letters) == ("q-dead-letters", place)


def test_two_spellings_of_a_place_are_one_place():
    spellings = ("amqp://h?queue=q", "rabbitmq://me:pw@h:5672/%2F?queue=q&heartbeat=5")
    one, other = map(connect, spellings)
    assert one.is_at(other)
    assert not one.is_at(connect("amqp://h/v?queue=q"))


def test_an_option_goes_before_the_urls_parameter():
    address = Address.parse("amqp://h?queue=q&heartbeat=5&connection_timeout=1500&verify=verify_none")
    read = settings_of({"heartbeat": "7"}, address.parameters)
    assert (read.heartbeat, read.connection_timeout, read.ssl_verify) == (7, 1.5, False)


@pytest.mark.parametrize("name", sorted(set(Settings.help()) - {"username", "password", "connection_name"}))
def test_an_option_out_of_range_is_named(name):
    if name in {"ssl.ca", "ssl.cert", "ssl.key", "ssl.server_name"}:
        options = {"ssl": "true", "ssl.ca": "/no/such/file", "ssl.cert": "/no/such/file", name: "/no/such/file"}
    else:
        options = {name: "-1"}
    with pytest.raises(ConfigurationError, match="rabbitmq.ssl" if "ssl." in name else f"rabbitmq.{name}"):
        connection_parameters(Address(queue="q"), settings_of(options))


def test_credentials_are_the_urls_else_the_options_else_guest(monkeypatch):
    monkeypatch.setenv("RABBIT_SECRET", SECRET)
    in_url = Address.parse("amqp://me:env%3ARABBIT_SECRET@h?queue=q")
    for address, read, wanted in (
        (in_url, settings(**OTHER), ("me", SECRET)),
        (Address(queue="q"), settings(**OTHER), ("other", "else")),
        (Address(queue="q"), settings(), ("guest", "guest")),
    ):
        given_ = connection_parameters(address, read).credentials
        assert (given_.username, given_.password) == wanted
        assert SECRET not in repr(address) + repr(read) + repr(connection_parameters(address, read))


def test_external_login_sends_no_password():
    parameters = connection_parameters(Address(queue="q"), settings(auth="external"))
    assert isinstance(parameters.credentials, pika.credentials.ExternalCredentials)


def test_tls_checks_the_broker_unless_told_not_to():
    checked = connection_parameters(Address(queue="q", host="h", tls=True), settings()).ssl_options
    assert (checked.context.verify_mode, checked.server_hostname) == (ssl.CERT_REQUIRED, "h")
    trusting = connection_parameters(
        Address(queue="q"), settings(ssl="true", ssl__verify="false", ssl__server_name="n")
    ).ssl_options
    assert (trusting.context.verify_mode, trusting.server_hostname) == (ssl.CERT_NONE, "n")


def test_a_subscription_is_a_queue_that_the_exchange_feeds_and_the_url_says_both():
    url = connect("amqp://me:pw@h/v?exchange=shop&routing_key=orders.%23&heartbeat=5").subscription("billing & co")
    address = Address.parse(url)
    assert (address.queue, address.exchange, address.routing_key) == ("shop:billing & co", "", "shop:billing & co")
    assert address.binding == Binding(exchange="shop", routing_key="orders.#", name="billing & co")
    assert address.full_url == url
    assert (address.dead_letters.queue, address.dead_letters.binding) == ("shop:billing & co-dead-letters", None)
    assert connect(url).is_at(connect("amqp://h/v?queue=shop:billing %26 co"))


@given(TEXT.map(lambda text: text[:20]), TEXT.map(lambda text: text[:20]))
def test_no_two_subscriptions_have_one_queue(first, second):
    """Whatever an exchange's name holds."""
    one, other = (f"{first}:{second}", "x"), (first, f"{second}:x")
    with pytest.raises(ConfigurationError):
        Address(exchange=other[0]).subscription(other[1])
    escape = ":" if first.startswith((":", "amq.")) else ""
    assert Address(exchange=one[0]).subscription(one[1]).queue == f"{escape}{first}:{second}:x"


@pytest.mark.parametrize(
    ("exchange", "queue"),
    [("amq.topic", ":amq.topic:x"), (":amq.topic", "::amq.topic:x"), ("amqtopic", "amqtopic:x")],
)
def test_a_subscriptions_queue_has_no_name_that_the_broker_keeps_for_itself(exchange, queue):
    assert Address(exchange=exchange).subscription("x").queue == queue


def test_a_queue_has_no_subscriptions_and_says_what_has():
    with pytest.raises(Unsupported, match="name the exchange"):
        connect("amqp://h?queue=q").subscription("billing")
    with pytest.raises(ConfigurationError, match="names both the queue 'q' and a subscription"):
        connect("amqp://h?exchange=e&queue=q").subscription("billing")
    with pytest.raises(ConfigurationError, match="names both the queue 'e:audit' and a subscription"):
        connect("amqp://h?exchange=e&subscription=audit").subscription("billing")


@pytest.mark.parametrize("rest", ["queue=q&subscription=s", "subscription=s", "exchange=e&subscription="])
def test_a_url_whose_subscription_cannot_be_is_refused(rest):
    with pytest.raises(InvalidURL, match="subscription"):
        Address.parse(f"amqp://h?{rest}")


def test_a_ref_to_an_exchange_is_the_exchange_and_no_queue_of_its_name():
    broker = connect("rabbitmq://u:pw@host/v?queue=orders", {})
    of_operator = Ref(api_version="rabbitmq.com/v1beta1", kind="Exchange", name="letters")
    for ref in (of_operator, Ref(kind="Exchange", name="letters")):
        assert Address.parse(broker.resolve(ref)).exchange == "letters"
        assert Address.parse(broker.resolve(ref)).queue == ""
    assert Address.parse(broker.resolve(Ref(kind="Queue", name="letters"))).queue == "letters"


@pytest.mark.parametrize("prefix", ["ce-", "cloudEvents:", "cloudEvents_"])
def test_the_prefix_of_cloudevents_is_chosen_by_option(prefix):
    given = {} if prefix == "ce-" else {"rabbitmq.cloudevents_prefix": prefix}
    assert connect("rabbitmq://h?queue=q", given).capabilities.cloudevents_prefix == prefix
