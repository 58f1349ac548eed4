"""URLs, subjects and options: what is read, and what is refused."""

import pytest

from redelivery.errors import ConfigurationError, InvalidURL, Permanent, UnknownOption
from redelivery_nats.address import Address, check_subject
from redelivery_nats.broker import connect
from redelivery_nats.client.nats_private import Nkey, credentials_in
from redelivery_nats.options import Settings


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("nats://h/orders", "nats://h:4222/orders"),
        ("nats://H:4222/orders", "nats://h:4222/orders"),
        ("nats://a,b:5222/orders", "nats://a:4222,b:5222/orders"),
        ("nats://[::1]/orders", "nats://[::1]:4222/orders"),
        ("nats://h/orders?subject=orders", "nats://h:4222/orders"),
        ("nats://h/orders?subject=orders.new&consumer=c", "nats://h:4222/orders?subject=orders.new&consumer=c"),
        ("nats://h/gr%C3%B6%C3%9Fe", "nats://h:4222/gr%C3%B6%C3%9Fe"),
    ],
)
def test_a_url_has_one_form(url: str, canonical: str) -> None:
    assert Address.parse(url).url == canonical
    assert Address.parse(canonical).url == canonical


@pytest.mark.parametrize(
    "url",
    [
        "nats://h",
        "nats:///orders",
        "nats:orders",
        "nats://h/a.b",
        "nats://h/a b",
        "nats://h/a%2Fb",
        "nats://h/%2E%2E",
        "nats://h:0/orders",
        "nats://h:99999/orders",
        "nats://h,/orders",
        "nats://h/orders#x",
        "nats://h/orders?subject=$JS.API.STREAM.DELETE.orders",
        "nats://h/orders?subject=orders.*",
        "nats://h/orders?consumer=a.b",
        "nats://h/orders?subject=a&subject=b",
        "nats://h/" + "x" * 129,
    ],
)
def test_a_url_that_names_no_stream_is_refused(url: str) -> None:
    with pytest.raises(InvalidURL):
        Address.parse(url)


def test_a_login_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidURL) as caught:
        Address.parse("nats://someone:c4nary@h/orders")
    assert "c4nary" not in str(caught.value)
    with pytest.raises(UnknownOption):
        Address.parse("nats://h/orders?password=c4nary")


@pytest.mark.parametrize(
    "subject", ["", ".", "a.", ".a", "a..b", "a b", "a.*", ">", "a\0", "a\n", "x" * 1001, "\ud800"]
)
def test_no_message_goes_under_what_is_no_subject(subject: str) -> None:
    with pytest.raises(Permanent):
        check_subject(subject)


@pytest.mark.parametrize("subject", ["$JS.API.STREAM.PURGE.orders", "$SYS.x", "$JS.ACK.s.c.1.1.1.1.0", "_INBOX.x.1"])
def test_no_row_is_a_command_to_the_server(subject: str) -> None:
    with pytest.raises(Permanent):
        check_subject(subject)


def test_dead_letters_are_a_stream_beside_and_their_own() -> None:
    letters = Address.parse("nats://h/orders?subject=orders.new").dead_letters
    assert letters.url == "nats://h:4222/orders-dead-letters"
    assert letters.dead_letters == letters
    assert letters.source is not None
    assert letters.source.stream == "orders"
    assert Address.parse("nats://h/orders").source is None


@pytest.mark.parametrize(
    "options",
    [
        {"user": "u"},
        {"password": "p"},
        {"tls_cert": "f"},
        {"token": "t", "user": "u", "password": "p"},
        {"nkey_secret": "s", "credentials_secret": "c"},
        {"api_prefix": "a.*"},
        {"inbox_prefix": "a b"},
        {"replicas": "6"},
        {"storage": "tape"},
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        Settings.parse(options)


def test_a_login_over_plain_text_to_another_host_is_insecure() -> None:
    assert connect("nats://far.example/orders", {"token": "t"}).insecure
    assert not connect("nats://far.example/orders", {"token": "t", "tls": "true"}).insecure
    assert not connect("nats://localhost/orders", {"token": "t"}).insecure
    assert connect("nats://localhost,far.example/orders", {"token": "t"}).hosts == ("localhost", "far.example")


#: The example of NATS's own documentation of nkeys, which no server knows.
SEED = "SUAGMJH5XLGZKQQWAWKRZJIGMOU4HPFUYLXJMXOO5NLFEO2OOQJ5LPRDPM"


def test_a_seed_signs_and_names_its_user() -> None:
    key = Nkey(f" {SEED}\n")
    assert key.public.startswith("U")
    assert len(key.public) == 56
    assert key.signed("nonce") == Nkey(SEED).signed("nonce") != key.signed("another")


@pytest.mark.parametrize("seed", ["", "SU", SEED[:-1], SEED.replace("M", "N"), "SA" + SEED[2:], "\0"])
def test_what_is_no_seed_is_refused_and_not_shown(seed: str) -> None:
    from nats.errors import InvalidUserCredentialsError  # noqa: PLC0415 - only here

    with pytest.raises(InvalidUserCredentialsError) as caught:
        Nkey(seed)
    assert "58 characters" in str(caught.value)


def test_a_file_of_credentials_is_read() -> None:
    text = f"-----BEGIN NATS USER JWT-----\nabc\ndef\n------END NATS USER JWT------\n\n*** a warning ***\n\n-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"  # noqa: E501
    assert credentials_in(text) == ("abcdef", SEED)
    assert credentials_in(text.replace("\n", "\r\n")) == ("abcdef", SEED)
