"""Secrets: references, values that are remembered, and redaction in linear time."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery import registry
from redelivery.base import restrictions, secrets
from redelivery.base.secrets import (
    LONGEST,
    Secret,
    guard_loggers,
    holds_secret,
    literal_secrets,
    redact,
    redact_url,
    refuse_literal,
    refuse_password,
    remember,
    remember_literals,
    resolve_secret,
    resolve_secrets,
)
from redelivery.contract.broker import Broker, BrokerPlugin, Capabilities
from redelivery.errors import ConfigurationError, InvalidURL, MissingSecret, UnknownScheme

CANARY = "c4nary-hunter2"


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test remembers is not a secret of another's."""
    monkeypatch.setattr(secrets, "_remembered", secrets._Remembered())


SPELLINGS = [
    f"carrier://user:{CANARY}@host/queue",
    f"carrier://:{CANARY}@host/queue",
    f"CARRIER://user:{CANARY}@host/queue",
    f"carrier:user:{CANARY}@host/queue",
    f"carrier:/user:{CANARY}@host/queue",
    f"carrier:///user:{CANARY}@host/queue",
    f"carrier:\\\\user:{CANARY}@host/queue",
    f"carrier://user:{CANARY} with space@host/queue",
    f"carrier://user: {CANARY}@host/queue",
    f"carrier://user:{CANARY}\t@host/queue",
    f"carrier://user:a@{CANARY}@host/queue",
    f"carrier://user:a/{CANARY}@host/queue",
    f"carrier://user:a?{CANARY}@host/queue",
    f"carrier://user:a#{CANARY}@host/queue",
    f"carrier://us%3Aer:{CANARY}@host/queue",
    f"carrier://user:{CANARY}@[::1/queue",
    f"carrier://user:{CANARY}@host:port/queue",
    f"carrier://user:{CANARY}@one:1,two:2/queue",
    f"carrier://host/queue?password={CANARY}",
    f"carrier://host/queue?a=b&PassWord={CANARY}",
    f"carrier://host/queue?a=b;password={CANARY}",
    f"carrier://host/queue?pass%77ord={CANARY}",
    f"carrier://host/queue?sas_token={CANARY}&x=y",
    f"carrier://host/queue?SharedAccessKey={CANARY}",
    f"carrier://host/queue#token={CANARY}",
    f"carrier:host?client_secret={CANARY}",
]


@pytest.mark.parametrize("url", SPELLINGS)
def test_a_secret_in_any_spelling_of_a_url_is_found_refused_and_not_shown(url: str) -> None:
    assert any(CANARY in each for each in literal_secrets(url))
    assert CANARY not in redact_url(url)
    assert CANARY not in redact(url)
    with pytest.raises(InvalidURL) as caught:
        refuse_password(url)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "carrier://user@host/queue",
        "sqlite:/data/orders.db?queue=a@b",
        "carrier://user:env:NAME@host/queue",
        "carrier://user:env%3ANAME@host/queue",
        "carrier://user:file:%2Frun%2Fsecrets%2Fpw@host/queue",
        "carrier://user:file:/run/secrets/pw@host/queue",
        "carrier://host/queue?password=env:NAME",
    ],
)
def test_a_url_without_a_literal_secret_is_left_as_it_is(url: str) -> None:
    refuse_password(url)
    assert redact_url(url) == url
    assert redact(url) == url


@pytest.mark.parametrize(
    "text",
    [
        "sasl_plaintext://broker-1:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed",
        "sasl_ssl://one:9092: broker is down, mail ops@example.org",
        "the disk has 3 partitions: a, b",
        "basic training for all",
    ],
)
def test_what_helps_is_not_hidden(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {CANARY}0",
        f'{{"password": "a\\"{CANARY}"}}',
        f"{{'password': 'a\\'{CANARY}'}}",
        f"external_id={CANARY}",
        f"connect(carrier://user:{CANARY}@host) failed",
    ],
)
def test_a_secret_that_nobody_told_of_is_found_by_what_stands_before_it(text: str) -> None:
    assert CANARY not in redact(text)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=6, max_size=40).filter(lambda text: text.isprintable())
)
def test_a_resolved_secret_is_hidden_in_every_spelling(value: str) -> None:
    remember(value)
    for shown in (value, quote(value, safe=""), quote_plus(value), json.dumps(value), repr(value)):
        assert value not in redact(f"refused <{shown}> by the broker").replace("***", "")


def test_the_value_of_a_reference_is_hidden_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "correct horse battery")
    value = resolve_secrets({"password": "env:A_TOKEN"})["password"]
    assert value == "correct horse battery"
    assert "horse" not in redact(f"the broker said: no user for {value}")
    assert "horse" not in f"{value!r} {[value]} { ({'password': value}) }"


def test_a_secret_written_out_in_a_url_is_hidden_once_the_url_is_opened() -> None:
    remember_literals("carrier://user:pass%20word%21@host")
    assert redact("login as user with 'pass word!' failed") == "login as user with '***' failed"


def test_an_option_that_is_spelled_like_a_secret_we_know_is_not_refused() -> None:
    """The user's name may be the password, as on many test machines: the first job must not end the second."""
    remember("orders-service")
    refuse_literal("carrier.username", "orders-service")


def test_a_certificate_is_public_whatever_its_letters_spell() -> None:
    """A thousandth of all certificates end like a pair of a secret name and a value."""
    certificate = "-----BEGIN CERTIFICATE-----\nMIIB+\n0/sas+token==\n-----END CERTIFICATE-----\n"
    refuse_literal("carrier.ssl.ca.pem", certificate * 2)
    for held in (f"{certificate}token=s3cr3t-value", certificate.replace("CERTIFICATE", "PRIVATE KEY")):
        with pytest.raises(ConfigurationError):
            refuse_literal("carrier.ssl.ca.pem", held)


def test_a_short_secret_does_not_eat_words() -> None:
    remember("queue")
    assert redact("no queue 'orders'") == "no queue 'orders'"


@pytest.mark.parametrize("name", ["busy_timeout", "endpoint_url", "client.id", "connection_name"])
def test_only_a_secret_may_be_a_reference(name: str, tmp_path: Path) -> None:
    planted = tmp_path / "passwd"
    planted.write_text(CANARY)
    with pytest.raises(ConfigurationError, match="only a secret may be a reference") as caught:
        resolve_secrets({name: f"file:{planted}"})
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("reference", ["file:{0}", "env:A_TOKEN"])
def test_a_value_that_came_from_a_reference_is_not_quoted_by_an_error(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", CANARY)
    (tmp_path / "secret").write_text(CANARY)
    value = resolve_secret(reference.format(tmp_path / "secret"))
    assert isinstance(value, Secret)
    assert CANARY not in f"password: not a number: {value!r}"


def test_an_unreadable_secret_file_leaves_no_bytes_of_it_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xff" + CANARY.encode())
    with pytest.raises(ConfigurationError) as caught:
        resolve_secret(f"file:{tmp_path / 'secret'}")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "piece",
    [
        "a://b:",
        "a://b:c@",
        "://",
        "password",
        "password=",
        'password="',
        "password='\\",
        "sas",
        "bearer ",
        "a.",
        "-password:",
        "http://a:b ",
        "@:",
        "x=y&token",
        "env:",
    ],
)
def test_redaction_takes_time_linear_in_the_text(piece: str) -> None:
    text = "carrier: " + piece * (LONGEST * 4 // len(piece))
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 5, "quadratic: 80 KB took half a minute, and this is 256 KB"


def test_a_long_text_is_cut_between_words_so_that_half_a_secret_is_not_shown() -> None:
    text = "x " * (LONGEST // 2 - 10) + f"carrier://user:{CANARY * 10}@host"
    assert len(text) > LONGEST
    assert CANARY[:6] not in redact(text)


# --- what a deployment allows ---------------------------------------------------------------------------------------


@pytest.fixture
def allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(text: str) -> Path:
        path = tmp_path / "restrictions.toml"
        path.write_text(text)
        monkeypatch.setenv(restrictions.VARIABLE, str(path))
        return path

    return write


def test_a_deployment_allows_only_certain_variables(allow, monkeypatch: pytest.MonkeyPatch) -> None:
    allow('variables = ["ORDERS_*"]')
    monkeypatch.setenv("ORDERS_PASSWORD", "one-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    assert resolve_secret("env:ORDERS_PASSWORD") == "one-secret"
    with pytest.raises(ConfigurationError, match="env:AWS_SECRET_ACCESS_KEY' is not allowed on this machine"):
        resolve_secret("env:AWS_SECRET_ACCESS_KEY")


def test_a_deployment_allows_only_certain_folders_and_links_do_not_lead_out(allow, tmp_path: Path) -> None:
    inside = tmp_path / "secrets"
    inside.mkdir()
    (inside / "good").write_text("one-secret")
    (tmp_path / "outside").write_text(CANARY)
    (inside / "link").symlink_to(tmp_path / "outside")
    allow(f'folders = ["{inside}"]')
    assert resolve_secret(f"file:{inside / 'good'}") == "one-secret"
    for escape in (tmp_path / "outside", inside / "link", inside / ".." / "outside"):
        with pytest.raises(ConfigurationError, match="is not allowed"):
            resolve_secret(f"file:{escape}")


def test_a_deployment_allows_only_certain_plugins(allow) -> None:
    allow('plugins = ["nothing"]')
    with pytest.raises(ConfigurationError, match="the plugin 'sqlite' is not allowed"):
        registry.connect("sqlite:orders.db?queue=orders")


def test_a_deployment_allows_only_certain_hosts(allow) -> None:
    allow('hosts = ["*.example.com"]')
    rules = restrictions.restrictions()
    rules.check_hosts(["a.example.com", "B.Example.COM"], "carrier")
    rules.check_hosts([], "sqlite")
    with pytest.raises(ConfigurationError, match=r"the host 'example\.org' is not allowed"):
        rules.check_hosts(["a.example.com", "example.org"], "carrier")
    with pytest.raises(ConfigurationError, match="does not tell its hosts"):
        rules.check_hosts(None, "carrier")


def test_the_machines_own_file_holds_beside_the_one_that_a_variable_names(
    allow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "system.toml"
    system.write_text('variables = ["A_*"]')
    monkeypatch.setattr(restrictions, "SYSTEM_FILE", system)
    allow('variables = ["*"]')
    monkeypatch.setenv("B_TOKEN", CANARY)
    with pytest.raises(ConfigurationError, match="is not allowed"):
        resolve_secret("env:B_TOKEN")


@pytest.mark.parametrize("text", ["hosts = 1", "what = []", "hosts = [1]", "hosts = ["])
def test_restrictions_that_cannot_be_understood_allow_nothing(allow, text: str) -> None:
    allow(text)
    with pytest.raises(ConfigurationError, match="the restrictions"):
        registry.connect("sqlite:orders.db?queue=orders")


def test_the_machines_own_file_that_leads_nowhere_allows_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system = tmp_path / "system.toml"
    system.symlink_to(tmp_path / "gone.toml")
    monkeypatch.setattr(restrictions, "SYSTEM_FILE", system)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        registry.connect("sqlite:orders.db?queue=orders")


def test_restrictions_that_are_missing_allow_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(restrictions.VARIABLE, str(tmp_path / "gone.toml"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        registry.connect("sqlite:orders.db?queue=orders")


def test_an_unknown_scheme_never_names_a_package_of_a_stranger() -> None:
    with pytest.raises(UnknownScheme) as caught:
        registry.discover([]).by_url("evil-package://host")
    assert "pip install" not in str(caught.value)
    with pytest.raises(UnknownScheme, match=r"pip install 'redelivery\[kafka\]'"):
        registry.discover([]).by_url("kafka://host/topic")


def test_secrets_write_no_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", CANARY)
    with caplog.at_level(logging.DEBUG):
        resolve_secret("env:A_TOKEN")
    assert not caplog.records


# --- insecure connections --------------------------------------------------------------------------------------------

SASL = {
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "me",
    "kafka.sasl.password": "env:A_PASSWORD",
}
INSECURE: list[tuple[str, dict[str, str]]] = [
    ("kafka://broker.example.com:9092/orders", {"kafka.security.protocol": "SASL_PLAINTEXT", **SASL}),
    (
        "kafka://localhost:9092/orders",
        {"kafka.security.protocol": "ssl", "kafka.enable.ssl.certificate.verification": "F"},
    ),
    (
        "kafka://localhost:9092/orders",
        {"kafka.security.protocol": "ssl", "kafka.ssl.endpoint.identification.algorithm": "None"},
    ),
    ("rabbitmq://broker.example.com/?queue=orders", {}),
    ("amqps://broker.example.com/?queue=orders&verify=verify_none", {}),
    ("amqps://broker.example.com/?queue=orders", {"rabbitmq.ssl.verify": "FALSE"}),
    ("sqs:orders", {"sqs.endpoint_url": "http://sqs.example.com:9324", "sqs.region": "eu-west-1"}),
    ("servicebus://sb.example.com:5672/orders", {"servicebus.connection_string": "env:SB_CONNECTION"}),
]
SECURE: list[tuple[str, dict[str, str]]] = [
    ("kafka://localhost:9092/orders", {"kafka.security.protocol": "sasl_plaintext", **SASL}),
    ("kafka://broker.example.com:9092/orders", {"kafka.security.protocol": "sasl_ssl", **SASL}),
    ("rabbitmq://127.0.0.2/?queue=orders", {}),
    ("rabbitmq://[::1]/?queue=orders", {}),
    ("amqps://broker.example.com/?queue=orders", {}),
    ("sqs:orders", {"sqs.endpoint_url": "http://localhost:9324", "sqs.region": "eu-west-1"}),
    ("sqlite:orders.db?queue=orders", {}),
]


@pytest.fixture
def passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_PASSWORD", CANARY)
    connection = (
        "Endpoint=sb://sb.example.com:5672/;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    )
    monkeypatch.setenv("SB_CONNECTION", connection)
    registry._warn_once.cache_clear()


@pytest.mark.parametrize(("url", "options"), INSECURE)
def test_an_insecure_connection_is_warned_of_once_and_refused_where_strict(
    url: str, options: dict[str, str], passwords: None, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        registry.connect(url, options)
    assert len(caplog.records) == 1
    assert "redelivery.strict=true would refuse that" in caplog.text
    with pytest.raises(ConfigurationError, match=r"redelivery\.strict refuses that"):
        registry.connect(url, {**options, "Redelivery.Strict": "true"})


@pytest.mark.parametrize(("url", "options"), SECURE)
def test_a_secure_or_local_connection_is_not_told_of(
    url: str, options: dict[str, str], passwords: None, caplog: pytest.LogCaptureFixture
) -> None:
    registry.connect(url, {**options, "redelivery.strict": "true"})
    assert not caplog.records


def test_a_deployment_may_be_strict(allow) -> None:
    allow("strict = true")
    with pytest.raises(ConfigurationError, match="refuses that"):
        registry.connect("rabbitmq://broker.example.com/?queue=orders")


@pytest.mark.parametrize("options", [{"redelivery.strikt": "true"}, {"redelivery.strict": "perhaps"}])
def test_a_mistyped_common_option_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="strict"):
        registry.connect("sqlite:orders.db?queue=orders", options)


# --- what hostile eyes found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["", "a", "ab", "\0user\0", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_within_base64_is_hidden(before: str, encode: Callable[[bytes], bytes]) -> None:
    """As SASL PLAIN and HTTP's basic authentication write it, behind a user's name."""
    remember("c4nary?hunter2~long>enough")
    text = encode(f"{before}c4nary?hunter2~long>enough".encode()).decode()
    shown = redact(f"header <{text}> sent")
    assert text[len(text) // 2 : -4] not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "secret",
    [
        f"Endpoint=sb://localhost/;SharedAccessKeyName=root;SharedAccessKey={CANARY}=;EntityPath=orders",
        f'org.example.Login required username="me" password="{CANARY}=";',
        f"amqps://user:{CANARY}%3D@host/",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}=\n{CANARY * 2}\n-----END PRIVATE KEY-----\n",
    ],
)
def test_the_secret_within_a_secret_is_known_too(secret: str) -> None:
    remember(secret)
    assert CANARY not in redact(f"the signature by <{CANARY}=> is wrong")


def test_a_password_within_the_json_of_an_option_is_known() -> None:
    resolve_secrets({"proxies": json.dumps({"https": f"http://me:{CANARY}@proxy:3128"})})
    assert CANARY not in redact(f"the proxy refuses {CANARY}")


def test_a_secret_in_use_is_not_forgotten_for_newer_ones() -> None:
    remember(CANARY)
    for number in range(secrets.REMEMBERED + 10):
        remember(f"rotated-token-{number:06}")
        if number % 100 == 0:
            remember(CANARY)
    assert CANARY not in redact(f"refused {CANARY}")


def test_a_thousand_remembered_secrets_do_not_slow_a_text_down() -> None:
    for number in range(secrets.REMEMBERED):
        remember(f"s3cret/{number:06}=+ {number}")
    began = time.process_time()
    redact("nothing to hide, s3cre but words; " * 3000)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "reference",
    ["env:A\nB", "env:A\0B", "env:\ud800", "file:/a\0b", "file:/\ud800", "file:/a\nb", "file:/" + "x" * 100_000,
     "env:" + "X" * 100_000, "file:/", "env:A=B", "file:\x1b[2J"],
)  # fmt: skip
def test_a_reference_to_nothing_gets_one_short_line(reference: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_secret(reference)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1000


def test_a_reference_to_a_file_without_end_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="more than"):
        resolve_secret("file:/dev/zero")


def test_what_a_client_logs_is_redacted_with_its_traceback_in_loggers_made_later_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    remember(CANARY)
    guard_loggers("chatty_client")
    log = logging.getLogger("chatty_client.made.later")
    with caplog.at_level(logging.DEBUG):
        log.debug("header %r", f"x {CANARY}")
        try:
            int(f"the key {CANARY} is wrong")
        except ValueError:
            log.exception("it failed")
        log.debug("bad %d", f"{CANARY}")
        logging.getLogger("chatty_clients").debug("of others: %s", "as it is")
    assert CANARY not in caplog.text
    assert "ValueError" in caplog.text
    assert "of others: as it is" in caplog.text


def _frames(error: BaseException) -> str:
    """What the frames of a traceback hold, below this test's own."""
    shown = []
    traceback_ = error.__traceback__
    while traceback_ is not None:
        if traceback_.tb_frame.f_code.co_filename != __file__:
            shown.append(repr(traceback_.tb_frame.f_locals))
        traceback_ = traceback_.tb_next
    return "\n".join(shown)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (
            "servicebus://localhost/orders",
            {"servicebus.connection_string": f"Endpoint=sb://h;SharedAccessKey={CANARY}"},
        ),
        ("servicebus://localhost/orders", {"servicebus.connection_string": CANARY}),
        ("sqs:orders", {"sqs.secret_access_key": CANARY}),
        ("rabbitmq://localhost/?queue=orders", {"rabbitmq.password": CANARY, "rabbitmq.heartbeat": "x"}),
        ("kafka://localhost:9092/orders", {"kafka.sasl.password": CANARY, "kafka.acks": "7"}),
    ],
)
def test_the_frames_of_a_configuration_error_hold_no_secret(
    url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Error reporting tools write the locals of each frame."""
    given = {}
    for name, value in options.items():
        monkeypatch.setenv("A_CANARY", CANARY if value == CANARY else value)
        given[name] = "env:A_CANARY" if CANARY in value else value
    monkeypatch.setenv("A_CANARY", next(value for value in options.values() if CANARY in value))
    with pytest.raises(ConfigurationError) as caught:
        registry.connect(url, given)
    assert CANARY not in _frames(caught.value)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_a_plugins_own_words_about_an_option_become_one_short_line_without_secrets() -> None:
    def refuse(_: str, options: Mapping[str, str]) -> Broker:
        raise ConfigurationError(f"carrier.size: a number, not {options['size']}; password {options['password']}")

    plugin = BrokerPlugin(
        name="carrier",
        schemes=("carrier",),
        version="1",
        capabilities=Capabilities(),
        connect=refuse,
        options={"size": "how much", "password": "what"},
    )
    options = {"carrier.size": "1\n2\x1b[2J" + "9" * 100_000, "carrier.password": CANARY}
    with pytest.raises(ConfigurationError) as caught:
        registry.open_broker(plugin, "carrier:orders", options)
    text = str(caught.value)
    assert text.startswith("carrier.size: a number, not 1\\n2\\x1b[2J99")
    assert text.endswith("password ***")
    assert len(text) < 2000
    assert text.isprintable()


@pytest.mark.parametrize("name", ["api_key", "apikey", "X-Api-Key", "apiKey", "AccountKey", "account.key"])
def test_keys_of_services_are_secrets_by_their_names(name: str) -> None:
    for text in (f"{name}={CANARY}", f'{{"{name}": "{CANARY}"}}', f"refused: {name}: {CANARY}, try again"):
        assert CANARY not in redact(text)
    assert holds_secret(name)
    assert redact("the rapid key and the account, keyed by a=1") == "the rapid key and the account, keyed by a=1"


def test_a_secret_from_a_file_is_read_again_and_another_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("first-value\n")
    monkeypatch.setenv("A_TOKEN", "first-value")
    found = resolve_secrets({"a.password": f"file:{file}", "b.password": "env:A_TOKEN", "c.password": "written-out"})
    file.write_text("second-value\n")
    monkeypatch.setenv("A_TOKEN", "second-value")
    assert [secrets.renewed(each) for each in found.values()] == ["second-value", "first-value", "written-out"]
    assert "second-value" not in redact("the server said: second-value")
    again = pickle.loads(pickle.dumps(found["a.password"]))  # noqa: S301 - our own
    assert secrets.renewed(again) == "second-value"
    file.unlink()
    with pytest.raises(MissingSecret):
        secrets.renewed(found["a.password"])
