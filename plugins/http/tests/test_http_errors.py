"""The table of errors: every status as Knative's eventing treats it, and every class of the client's errors."""

import email.utils
import inspect
import time
from http import HTTPStatus

import httpx2
import pytest

from redelivery.codes import Code
from redelivery.errors import Ambiguous, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery_http.client.connection import Answer, Connection
from redelivery_http.errors import BY_CLASS, TABLE

#: What `SelectiveRetry` of knative.dev/eventing v0.49.2 (pkg/kncloudevents/retries.go) said of each status from 100 to
#: 599, run with Go 1.26.8: these are tried again, and no other.
RETRIED = {404, 408, 409, 429, *range(500, 600)}
#: Tried again here alone: they mean by definition that nothing happened (RFC 9110, section 15.5.20, and RFC 8470).
UNPROCESSED = {421, 425}
#: What no event can pass: Knative would dead-letter every event.
HOPELESS = {401, 403, 405, 407, 410, 414, 426, *range(300, 400)}


def raised(status: int, *, rows: int = 1, retry_after: float = 0.0, text: str = "") -> Exception:
    return TABLE.error(Answer(status, text, retry_after), "sending to http://x", rows=rows)


@pytest.mark.parametrize("status", range(300, 600))
def test_http_what_knative_tries_again_is_tried_again_here(status: int) -> None:
    error = raised(status)
    assert error.native_code == str(status)
    assert error.code is not Code.UNKNOWN
    if status in RETRIED | UNPROCESSED:
        assert isinstance(error, Retriable | Ambiguous)
    elif status in HOPELESS:
        assert isinstance(error, Fatal)
    else:
        assert isinstance(error, Permanent)


@pytest.mark.parametrize("status", [500, 502, 504, 520, 409])
def test_http_a_failure_behind_which_the_event_may_be_stored_is_ambiguous(status: int) -> None:
    assert isinstance(raised(status), Ambiguous)


@pytest.mark.parametrize("status", [600, 900, 999])
def test_http_a_status_that_no_standard_has_is_a_failure_of_the_server(status: int) -> None:
    error = raised(status)
    assert isinstance(error, Ambiguous)
    assert error.code is Code.UNAVAILABLE


@pytest.mark.parametrize("status", [400, 413, 415, 422, 431, 451])
def test_http_a_refused_batch_blames_no_event(status: int) -> None:
    assert isinstance(raised(status, rows=2), Unattributed)


def test_http_retry_after_counts_for_429_and_503_only() -> None:
    for status in (429, 503):
        error = raised(status, retry_after=7)
        assert isinstance(error, Throttled)
        assert error.retry_after == 7
    assert not isinstance(raised(500, retry_after=7), Throttled)


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"Retry-After": "120"}, 120),
        ({"Retry-After": " 0 "}, 0),
        ({"Retry-After": "-1"}, 0),
        ({"Retry-After": "1.5"}, 0),
        ({"Retry-After": "9" * 400}, 0),
        ({"Retry-After": "999999999"}, 86_400),
        ({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, 86_400),
        ({"Retry-After": "٣"}, 0),
        ({"Retry-After": "soon"}, 0),
        ({}, 0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:50:07 GMT", "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 30),
        ({"Retry-After": "Sun, 06 Nov 99999 08:50:07 GMT"}, 0),
    ],
)
def test_http_retry_after_is_seconds_or_a_date_by_the_servers_clock(headers: dict, wanted: float) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    response = httpx2.Response(503, headers=pairs, content=b"")
    assert Connection.refusal(response, time.monotonic() + 1).retry_after == wanted


def test_http_a_date_without_the_servers_clock_is_read_by_ours() -> None:
    then = email.utils.formatdate(time.time() + 60, usegmt=True)
    response = httpx2.Response(429, headers={"Retry-After": then}, content=b"")
    assert 50 < Connection.refusal(response, time.monotonic() + 1).retry_after <= 60


def test_http_every_class_of_the_clients_errors_is_mapped() -> None:
    found = {each for _, each in inspect.getmembers(httpx2, inspect.isclass) if issubclass(each, httpx2.TransportError)}
    assert len(found) > 10
    unsent = {httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError}
    never = {httpx2.LocalProtocolError, httpx2.UnsupportedProtocol}
    for each in found:
        error = TABLE.error(each("why"), "sending", rows=1)
        assert isinstance(error, Retriable if each in unsent else Permanent if each in never else Ambiguous), each
    assert {*BY_CLASS} - found == {*BY_CLASS} - {each for each in BY_CLASS if issubclass(each, httpx2.TransportError)}


def test_http_an_error_of_tls_is_fatal_whenever_it_comes() -> None:
    for error in (
        httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
        httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        httpx2.ReadError("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"),
    ):
        told = TABLE.error(error, "sending", rows=1)
        assert isinstance(told, Fatal)
        assert told.code is Code.TLS_FAILED
    cut = TABLE.error(httpx2.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"), "sending", rows=1)
    assert isinstance(cut, Retriable)


def test_http_an_answers_text_cannot_pass_for_an_error_of_tls() -> None:
    assert isinstance(raised(500, text="[SSL: CERTIFICATE_VERIFY_FAILED]"), Ambiguous)


def test_http_every_status_that_the_standard_names_has_its_own_words() -> None:
    texts = {int(each): str(raised(each)) for each in HTTPStatus if each >= 400}
    assert all("http://x" in text for text in texts.values())
