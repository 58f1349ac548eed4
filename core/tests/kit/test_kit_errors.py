"""The error table: which rule counts, what a call changes of it, and what the text shows."""

import pickle

import pytest

from redelivery.errors import (
    Ambiguous,
    BrokerError,
    Fatal,
    LeaseLost,
    MissingSecret,
    Permanent,
    Retriable,
    Throttled,
    Unattributed,
)
from redelivery.kit.errors import BUG, ClientError, Code, ErrorTable, Rule

LOST = Rule(Ambiguous, Code.CONNECTION_LOST, "it may have been stored or not")
MISSING = Rule(Fatal, Code.NO_SUCH_DESTINATION, "provision it, or correct the URL", about_target=True)
DENIED = Rule(Fatal, Code.NOT_AUTHORIZED, "give this user the permission")
BATCH = Rule(Unattributed, Code.INVALID_MESSAGE, "the request was refused")
SLOW = Rule(Throttled, Code.THROTTLED, "nothing was stored")
NODE = Rule(Retriable, Code.UNAVAILABLE, "wait until the node is up")


class Answer(Exception):
    """An error of a client, with a code and perhaps a pause."""

    def __init__(self, text: str, code: int, pause: float = 0.0) -> None:
        super().__init__(text)
        self.code = code
        self.pause = pause


class Wrapped(Exception):
    """What a client wraps around another error."""


def describe(error: Exception) -> ClientError:
    if isinstance(error, Wrapped):
        return ClientError(str(error.args[0]), cause=error.args[0])
    if isinstance(error, Answer):
        return ClientError(str(error), codes=(error.code, error.code // 100), retry_after=error.pause)
    return ClientError(str(error))


TABLE = ErrorTable(
    "carrier",
    by_class={OSError: LOST, TimeoutError: NODE, Answer: BUG, Wrapped: BUG},
    by_code={404: MISSING, 403: DENIED, 413: BATCH, 429: SLOW, 5: LOST},
    by_text=[(404, "is down", NODE)],
    describe=describe,
)


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        (Answer("no queue", 404), MISSING),
        (Answer("the node is down", 404), NODE),
        (Answer("it is down", 403), DENIED),
        (Answer("oops", 503), LOST),
        (Answer("?", 399), BUG),
        (ConnectionResetError("reset"), LOST),
        (TimeoutError("late"), NODE),
        (Wrapped(ConnectionResetError("reset")), LOST),
        (ZeroDivisionError("x"), BUG),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else value.code,
)
def test_text_counts_before_code_and_code_before_the_nearest_class(error: Exception, rule: Rule) -> None:
    assert TABLE.rule(error) is rule


def test_an_error_says_what_was_done_what_failed_and_what_to_do() -> None:
    cause = Answer("no  such\nqueue", 404)
    error = TABLE.error(cause, "sending to queue 'orders'")
    assert type(error) is Fatal
    assert str(error) == ("carrier: sending to queue 'orders': no such queue (404); provision it, or correct the URL")
    assert (error.code, error.native_code, error.__cause__) == (Code.NO_SUCH_DESTINATION, "404", cause)


def test_an_error_without_a_text_or_a_code_is_called_by_its_class() -> None:
    error = TABLE.error(ConnectionResetError(), "sending")
    assert str(error) == "carrier: sending: ConnectionResetError; it may have been stored or not"
    assert TABLE.error(Wrapped(BrokenPipeError("pipe")), "sending").native_code == "BrokenPipeError"


def test_a_password_in_the_clients_text_is_not_shown_and_a_long_text_is_cut_after_that() -> None:
    text = str(TABLE.error(OSError("x" * 480 + " carrier://user:hunter2hunter2@host/q" + "y" * 900), "connecting"))
    assert "hunter2" not in text
    assert len(text) < 700


@pytest.mark.parametrize(
    ("code", "call", "kind"),
    [
        (503, {}, Ambiguous),
        (503, {"safe": True}, Retriable),
        (413, {"rows": 2}, Unattributed),
        (413, {"rows": 1}, Permanent),
        (413, {}, Fatal),
        (404, {"own_target": False}, Permanent),
        (404, {"own_target": True}, Fatal),
        (403, {"own_target": False}, Fatal),
    ],
)
def test_what_is_known_of_the_call_changes_the_class(code: int, call: dict, kind: type[BrokerError]) -> None:
    assert type(TABLE.error(Answer("no", code), "sending", **call)) is kind


def test_what_changed_nothing_is_not_said_to_be_in_doubt() -> None:
    assert "may have been stored" not in str(TABLE.error(Answer("no", 503), "connecting", safe=True))


def test_a_missing_permission_is_named() -> None:
    assert str(TABLE.error(Answer("no", 403), "sending", needs="write on 'orders'")).endswith(
        "give this user the permission; it needs write on 'orders'"
    )
    assert "it needs" not in str(TABLE.error(Answer("no", 404), "sending", needs="write on 'orders'"))


def test_a_pause_that_the_broker_asks_for_is_kept() -> None:
    error = TABLE.error(Answer("slow down", 429, pause=2.5), "sending")
    assert isinstance(error, Throttled)
    assert error.retry_after == 2.5


def test_a_rule_can_be_given_and_a_failure_told_to_a_callback_has_no_cause() -> None:
    error = TABLE.error("refused", "sending", rule=DENIED)
    assert (type(error), error.native_code, error.__cause__) == (Fatal, "str", None)


def test_while_doing_raises_the_classified_error_chained() -> None:
    cause = Answer("no", 404)
    with pytest.raises(Permanent) as raised, TABLE.while_doing("sending", own_target=False):
        raise cause
    assert raised.value.__cause__ is cause


def test_while_doing_lets_other_errors_pass() -> None:
    own = Retriable("told already", code=Code.FULL)
    with pytest.raises(Retriable) as raised, TABLE.while_doing("sending"):
        raise own
    assert raised.value is own
    with pytest.raises(ZeroDivisionError), TABLE.while_doing("sending"):
        raise ZeroDivisionError
    with pytest.raises(Fatal, match="ZeroDivisionError"), TABLE.while_doing("sending", also=(ZeroDivisionError,)):
        raise ZeroDivisionError


def test_while_doing_lets_redeliverys_own_errors_pass_though_one_is_a_value_error() -> None:
    table = ErrorTable("carrier", by_class={ValueError: LOST})
    for own in (MissingSecret("env:X is not set"), LeaseLost("gone"), Fatal("no")):
        with pytest.raises(type(own)) as passed, table.while_doing("sending"):
            raise own
        assert passed.value is own


def test_an_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(TABLE.error(Answer("no", 429, pause=1.0), "sending")))  # noqa: S301 - our own
    assert (error.code, error.native_code, error.retry_after) == (Code.THROTTLED, "429", 1.0)


def test_a_word_that_the_broker_chose_is_one_short_line_without_a_password() -> None:
    """It becomes a header, a column and a line of a log."""
    word = "odd\nLevel: \x1b[2Jforged amqps://me:hunter2@host/ " + "x" * 100_000
    table = ErrorTable("carrier", by_class={Answer: LOST}, describe=lambda _: ClientError("no", name=word))
    error = table.error(Answer("no", 1), "sending")
    assert error.native_code is not None
    for text in (error.native_code, str(error)):
        assert len(text) < 1000
        assert "\n" not in text
        assert "hunter2" not in text
