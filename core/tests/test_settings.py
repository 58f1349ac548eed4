"""Options, secret references and redaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.base.urls import (
    holds_secret,
    nearest,
    redact,
    redact_options,
    refuse_password,
    resolve_secret,
    resolve_secrets,
    scheme_of,
    split_url,
    unknown,
)
from redelivery.errors import ConfigurationError, InvalidURL

SECRET_NAMES = [
    *("password", "PASSWORD", "sasl.password", "client_secret", "access_key", "accessKey", "SharedAccessKey"),
    *("aws.session.token", "sas", "connection_string", "sasl.jaas.config", "ssl.key.passphrase", "credentials"),
    *("SharedAccessSignature", "sas_token", "sasToken", "sasl.oauthbearer.config", "ssl.key.pem"),
]
#: What may stand in a password in a URL without ending it.
PASSWORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8, max_size=30).map("s3cr3t".__add__)


@given(PASSWORDS)
def test_no_password_in_a_url_is_shown(password: str) -> None:
    assert password not in redact(f"cannot open scheme://user:{password}@host:1/queue today")


@pytest.mark.parametrize("password", ["a@b", "a:b", "a/b", "a?b#c", "p%40ss", "ünï", "***@"])
def test_a_password_with_the_urls_own_marks_in_it_is_not_shown_either(password: str) -> None:
    assert redact(f"scheme://user:{password}@host/queue") == "scheme://user:***@host/queue"


def test_a_url_with_a_password_and_no_user_is_redacted() -> None:
    assert redact("scheme://:hunter2@host") == "scheme://:***@host"


@given(
    st.sampled_from(SECRET_NAMES),
    st.sampled_from(["=", ": ", " = "]),
    PASSWORDS,
)
def test_no_value_of_a_secret_name_is_shown(name: str, between: str, secret: str) -> None:
    assert secret not in redact(f"refused: {name}{between}{secret}; try again")
    assert secret not in redact(f'refused: {name}{between}"{secret} and more", try again')
    assert redact_options({name: secret})[name] == "***"


@pytest.mark.parametrize(
    "text", ["", "a plain sentence: nothing in it", "sqlite:orders.db?queue=q", "mail a@b.org now"]
)
def test_what_holds_no_secret_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms", "sasl.username", "client.SASL.mechanism"])
def test_how_a_client_identifies_itself_is_shown(name: str) -> None:
    assert redact_options({name: "PLAIN"}) == {name: "PLAIN"}
    assert redact(f"refused: {name}=PLAIN") == f"refused: {name}=PLAIN"


def test_redaction_is_idempotent() -> None:
    once = redact("scheme://user:hunter2@host password=hunter2")
    assert redact(once) == once


def test_a_reference_is_shown_because_it_holds_no_secret() -> None:
    options = {"password": "env:THE_PASSWORD", "token": "file:/run/secrets/token"}
    assert redact_options(options) == options


@pytest.mark.parametrize("password", ["env:RMQ_PW", "file:/run/secrets/rmq"])
def test_a_reference_in_a_url_is_shown_so_that_the_url_still_opens(password: str) -> None:
    url = f"carrier://app:{password}@host?queue=orders"
    assert redact(url) == url
    assert redact("carrier://app:env:a@b%hunter2@host") == "carrier://app:***@host"


def test_an_option_that_is_a_url_loses_only_its_password() -> None:
    assert redact_options({"proxy": "http://me:hunter2@proxy"}) == {"proxy": "http://me:***@proxy"}


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidURL, match="env:NAME") as caught:
        refuse_password("scheme://user:hunter2@host")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["scheme://user@host", "scheme://user:env:NAME@host", "sqlite:a.db", "scheme://h:1/q"])
def test_a_url_without_a_password_of_its_own_is_not_refused(url: str) -> None:
    refuse_password(url)


@pytest.mark.parametrize(
    "name",
    ["sasl.password", "ssl.key.pem", "ssl.key.password", "client.secret", "sas_key", "sas_token", "session_token"],
)
def test_an_option_that_is_a_secret_is_known_by_its_name(name: str) -> None:
    assert holds_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.oauthbearer.token.endpoint.url",
        "sas_key_name",
        "access_key_id",
        "kms_key",
        "credential",
        "ssl.key.location",
    ],
)
def test_an_option_about_a_secret_may_be_written_as_it_is(name: str) -> None:
    assert not holds_secret(name)


def test_a_secret_comes_from_the_environment_of_the_machine_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "hunter2")
    assert resolve_secrets({"token": "env:A_TOKEN", "linger": "5"}) == {"token": "hunter2", "linger": "5"}


@pytest.mark.parametrize("form", ["file:{}", "file://{}"])
def test_a_secret_comes_from_a_file_without_its_last_line_end(tmp_path: Path, form: str) -> None:
    (tmp_path / "secret").write_text(" hunter2 \r\n", encoding="utf-8")
    assert resolve_secret(form.format(tmp_path / "secret")) == " hunter2 "


def test_a_reference_to_nothing_names_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match="env:A_TOKEN"):
        resolve_secret("env:A_TOKEN")
    with pytest.raises(ConfigurationError, match="gone"):
        resolve_secret(f"file:{tmp_path / 'gone'}")


def test_an_unreadable_secret_file_shows_nothing_of_its_content(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"hunter2 \xff\xfe")
    with pytest.raises(ConfigurationError, match="UnicodeDecodeError") as caught:
        resolve_secret(f"file:{tmp_path / 'secret'}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", ["plain", "env:", "file:", "a:b", ""])
def test_any_other_value_is_itself(value: str) -> None:
    assert resolve_secret(value) == value


@pytest.mark.parametrize(
    ("url", "scheme"), [("sqlite:a.db", "sqlite"), ("SQLITE:///a", "sqlite"), ("a+b-c.d://h", "a+b-c.d")]
)
def test_the_scheme_of_a_url_is_lower_case(url: str, scheme: str) -> None:
    assert scheme_of(url) == scheme


@pytest.mark.parametrize("url", ["", "orders.db", "/var/orders", "://host", "1a:b", "ö:b"])
def test_what_has_no_scheme_is_an_error_that_shows_one(url: str) -> None:
    with pytest.raises(InvalidURL, match=r"sqlite:orders\.db"):
        scheme_of(url)


@pytest.mark.parametrize("url", ["scheme://user:hunter2@host:port/q", "scheme://user:hunter2@[::1/q"])
def test_a_malformed_url_is_an_error_that_shows_no_password(url: str) -> None:
    with pytest.raises(InvalidURL, match="not a valid URL") as caught:
        split_url(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "hosts", "path"),
    [
        ("scheme://a,b:1/t?x=1#y", "a,b:1", "/t"),
        ("scheme://[::1],[fe80::1]:9093//t", "[::1],[fe80::1]:9093", "//t"),
        ("scheme://a\n,\tb/t", "a,b", "/t"),
        ("scheme:///t", "", "/t"),
        ("scheme:t", "", "t"),
    ],
)
def test_a_url_may_list_hosts_each_of_them_an_address_in_brackets(url: str, hosts: str, path: str) -> None:
    """With the fix of CVE-2025-0938 `urlsplit` itself refuses two addresses in brackets: seen on Python 3.14.7."""
    found = split_url(url, several_hosts=True)
    assert (found.scheme, found.netloc, found.path) == ("scheme", hosts, path)


@pytest.mark.parametrize("url", ["scheme://a,[::1/t", "scheme://[x],b/t", "scheme://u:hunter2@[::1,b/t"])
def test_of_several_hosts_each_must_be_valid(url: str) -> None:
    with pytest.raises(InvalidURL, match="not a valid URL") as caught:
        split_url(url, several_hosts=True)
    assert "hunter2" not in str(caught.value)


def test_the_nearest_name_is_found_without_regard_to_case() -> None:
    assert nearest("DEADLETTERSINC", ["deadLetterSink", "retry"]) == "deadLetterSink"
    assert nearest("xyz", ["deadLetterSink", "retry"]) is None


def test_an_unknown_name_gets_the_nearest_or_else_the_list() -> None:
    assert str(unknown("option", "retyr", ["retry", "url"])) == "unknown option 'retyr'; did you mean 'retry'?"
    assert str(unknown("option", "xyz", ["url", "retry"])) == "unknown option 'xyz'; known are: retry, url"
