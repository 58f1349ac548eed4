"""The URL of a queue, the options, and what they make of a client."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.errors import ConfigurationError, Fatal, InvalidURL, UnknownOption
from redelivery.registry import connect
from redelivery_sqs.address import Address
from redelivery_sqs.client.connections import boto_client, queue_url
from redelivery_sqs.options import Settings

ACCOUNT = "123456789012"
KEYS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "hidden-key"}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("sqs:orders", Address("orders")),
        ("sqs://orders", Address("orders")),
        ("sqs:orders.fifo?region=eu-west-1", Address("orders.fifo", region="eu-west-1")),
        (
            f"sqs:https://sqs.eu-west-1.amazonaws.com/{ACCOUNT}/orders",
            Address("orders", account=ACCOUNT, region="eu-west-1"),
        ),
        (
            f"sqs:https://sqs.cn-north-1.amazonaws.com.cn/{ACCOUNT}/orders",
            Address("orders", account=ACCOUNT, region="cn-north-1"),
        ),
        (
            f"sqs:https://vpce-1a-2b.sqs.us-east-1.vpce.amazonaws.com/{ACCOUNT}/orders",
            Address(
                "orders",
                account=ACCOUNT,
                region="us-east-1",
                endpoint="https://vpce-1a-2b.sqs.us-east-1.vpce.amazonaws.com",
            ),
        ),
        (
            "sqs:http://localhost:9324/000000000000/orders",
            Address("orders", account="000000000000", endpoint="http://localhost:9324"),
        ),
        (f"sqs:arn:aws:sqs:eu-west-1:{ACCOUNT}:orders", Address("orders", account=ACCOUNT, region="eu-west-1")),
        (
            "sqs:orders?profile=dev&role_arn=arn%3Aaws%3Aiam%3A%3A1%3Arole/r",
            Address("orders", profile="dev", role="arn:aws:iam::1:role/r"),
        ),
    ],
)
def test_a_queue_is_named_by_its_name_its_url_or_its_arn(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "sqs:",
        "sqs:no spaces",
        "sqs:" + "x" * 81,
        "sqs:orders#part",
        "sqs:orders?region=a&region=b",
        "sqs:orders?region=",
        "sqs:arn:aws:sns:eu-west-1:123456789012:orders",
        "sqs:https://sqs.eu-west-1.amazonaws.com/orders",
        "sqs:orders?endpoint_url=localhost",
        f"sqs:arn:aws:sqs:eu-west-1:{ACCOUNT}:orders?region=eu-west-2",
    ],
)
def test_what_names_no_queue_is_refused(url: str) -> None:
    with pytest.raises(InvalidURL, match="sqs"):
        Address.parse(url)


def test_an_unknown_parameter_or_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownOption, match="'region'"):
        Address.parse("sqs:orders?regoin=eu-west-1")
    with pytest.raises(UnknownOption, match=r"sqs\.read_timeout"):
        Settings.parse({"read_timeuot": "1"})


names = st.text("abcXYZ019-_", min_size=1, max_size=60)


@given(names, st.booleans(), st.sampled_from([None, "eu-west-1"]), st.sampled_from([None, "http://localhost:1"]))
def test_an_address_is_read_back_from_its_url(name: str, fifo: bool, region: str | None, endpoint: str | None) -> None:
    address = Address(name + ".fifo" * fifo, region=region, endpoint=endpoint)
    assert Address.parse(address.url) == address
    letters = address.dead_letters
    assert letters.fifo == address.fifo, "SQS wants FIFO with FIFO"
    assert letters.dead_letters == letters
    assert Address.parse(letters.url) == letters


REGION, ENDPOINT = {"sqs.region": "eu-west-1"}, {"sqs.endpoint_url": "http://localhost:9324"}


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("sqs:orders", {**REGION, **ENDPOINT}),
        ("sqs://orders", {**REGION, "sqs.endpoint_url": "HTTP://LocalHost:9324/"}),
        ("sqs:orders?region=eu-west-1", ENDPOINT),
        ("sqs:orders?endpoint_url=http://localhost:9324/", REGION),
        ("sqs:orders?endpoint_url=http://localhost:9324&region=eu-west-1", {"sqs.region": "eu-west-2"}),
    ],
)
def test_a_place_is_recognised_however_it_is_spelled(url: str, options: dict[str, str]) -> None:
    """By the URL and by the options: the dead letters of a queue must not be sent to the queue of dead letters."""
    same = connect("sqs:orders?region=eu-west-1&endpoint_url=http://localhost:9324", {})
    found = connect(url, options)
    assert found.is_at(same)
    assert found.native_sink() == same.native_sink()
    assert found.sibling("orders-dead-letters") == same.native_sink()
    assert connect(found.native_sink(), {}).canonical_url == same.native_sink()


@pytest.mark.parametrize(
    "url",
    [
        "sqs:orders?region=eu-west-2",
        "sqs:orders?endpoint_url=https://localhost:9324",
        "sqs:orders?endpoint_url=http://localhost",
        "sqs:orders?profile=dev",
        "sqs:others",
        f"sqs:arn:aws:sqs:eu-west-1:{ACCOUNT}:orders",
    ],
)
def test_another_place_is_another(url: str) -> None:
    options = {**REGION, **ENDPOINT}
    assert not connect(url, options).is_at(connect("sqs:orders", options))


def test_a_schemes_own_port_says_nothing() -> None:
    for scheme, port in (("http", 80), ("https", 443)):
        with_port, without = (
            connect(f"sqs:q?endpoint_url={scheme}://sqs.local{each}", {}) for each in (f":{port}", "")
        )
        assert with_port.is_at(without)


@pytest.mark.parametrize(
    "options",
    [
        {"read_timeout": "soon"},
        {"dead_letter_visibility_timeout": "1"},
        {"read_timeout": "nan"},
        {"concurrency": "0"},
        {"tcp_keepalive": "perhaps"},
        {"proxies": "http://proxy"},
        {"proxies": '{"https": "http://[::1"}'},
        {"access_key_id": "AKID"},
        {"region": ""},
    ],
)
def test_an_option_out_of_range_is_refused_by_its_name(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=f"sqs.{next(iter(options))}"):
        Settings.parse(options)


def test_settings_never_show_secrets() -> None:
    options = {**KEYS, "session_token": "hidden-token", "external_id": "hidden-id", "proxies": '{"https": "hidden"}'}
    assert "hidden" not in repr(Settings.parse(options))
    assert "hidden" not in repr(connect("sqs:orders", {f"sqs.{name}": value for name, value in options.items()}))


def test_a_proxy_is_a_host_that_is_spoken_to_however_it_is_written() -> None:
    """As botocore reads it: without a scheme it is `http`."""
    for text in ("proxy", "proxy:3128", "//proxy:3128", "http://me:pw@proxy:3128"):
        broker = connect("sqs:orders?region=eu-west-1", {"sqs.proxies": f'{{"https": "{text}"}}'})
        assert tuple(broker.hosts) == ("sqs.eu-west-1.amazonaws.com", "proxy")


def test_botocore_itself_never_retries() -> None:
    made = boto_client(Address("orders", region="eu-west-1"), Settings.parse(KEYS))
    assert made.meta.config.retries["total_max_attempts"] == 1


def test_one_place_has_one_client_in_a_process_and_another_one_in_a_fork() -> None:
    address, settings = Address("orders", region="eu-west-1"), Settings.parse(KEYS)
    own = boto_client(address, settings)
    assert boto_client(address.sibling("others"), settings) is own
    assert boto_client(Address("orders", region="eu-west-2"), settings) is not own
    child = os.fork()
    if child == 0:
        os._exit(0 if boto_client(address, settings) is not own else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_queue_whose_account_is_known_is_not_looked_for() -> None:
    url = queue_url(Address("orders", account=ACCOUNT, region="eu-west-1"), Settings.parse(KEYS))
    assert url == f"https://sqs.eu-west-1.amazonaws.com/{ACCOUNT}/orders"


def test_without_credentials_the_error_says_where_to_give_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for them ends: here nothing answers for the machine's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1/"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(Fatal, match=r"sqs\.access_key_id"):
        boto_client(Address("orders", region="eu-west-1"), Settings())
    with pytest.raises(Fatal, match=r"sqs\.region"):
        boto_client(Address("orders"), Settings.parse(KEYS))
    with pytest.raises(Fatal, match="profile"):
        boto_client(Address("orders", profile="nobody"), Settings.parse({"region": "eu-west-1"}))


@pytest.mark.parametrize("endpoint", ["localhost:4566", "ftp://host", "http://me:secret@host", "http://host:port"])
def test_an_endpoint_that_is_no_url_is_told_before_anything_is_sent(endpoint: str) -> None:
    with pytest.raises(InvalidURL, match=r"sqs\.endpoint_url") as caught:
        Settings.parse({"endpoint_url": endpoint})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["elastic_mq:9324", "my_project_sqs_1", "a..b", f"{'a' * 64}.example"])
def test_a_host_that_boto3_does_not_take_is_told_and_what_it_takes(host: str) -> None:
    """Names of containers often have an underscore."""
    with pytest.raises(InvalidURL, match=r"sqs\.endpoint_url.*not '_'; use another name"):
        Settings.parse({"endpoint_url": f"http://{host}"})
    with pytest.raises(InvalidURL, match="not '_'; use another name"):
        Address.parse(f"sqs:orders?endpoint_url=http://{host}")


def test_hosts_that_boto3_takes_are_taken() -> None:
    for host in ("localhost:4566", "127.0.0.1:1", "[::1]:1", "sqs.eu-west-1.amazonaws.com"):
        Settings.parse({"endpoint_url": f"http://{host}"})


def test_an_endpoint_of_the_environment_that_is_none_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://elastic_mq:9324")
    with pytest.raises(Fatal, match="endpoint that the environment names"):
        boto_client(Address("orders", region="eu-west-3"), Settings.parse(KEYS))
