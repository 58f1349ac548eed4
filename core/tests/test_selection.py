"""Conditions mean what they say, and one that cannot be meant is refused with what to write."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.codes import Code
from redelivery.contract.broker import Letter, LetterBatch, Limits
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.deadletters.selection import NUMBERS, TEXTS, Selection
from redelivery.deadletters.trust import context_of
from redelivery.errors import ConfigurationError
from redelivery.formats.dialects import attach

NOW = 1_700_000_000_000
CONTEXT = ErrorContext(
    reason="read timed out",
    kind="permanent",
    code=Code.TOO_LARGE,
    native_code="MSG_SIZE_TOO_LARGE",
    attempts=3,
    attempts_total=7,
    hops=1,
    maybe_delivered=True,
)
LETTER = Letter(
    position="p-1",
    message=Message(value=b"12345", id="order-7", headers=(("tenant", b"acme"), ("tenant", b"zeta"), ("empty", None))),
    context=CONTEXT,
    dead_lettered_ms=NOW - 7_200_000,
)

STYLE: dict[str, Any] = {"dialect": "json", "limits": Limits(), "prefix": None}


def about(reason: str) -> Letter:
    return replace(LETTER, context=replace(CONTEXT, reason=reason))


def admits(*texts: str, letter: Letter = LETTER) -> bool:
    return Selection.parse(*texts).admits(letter, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "kind=permanent",
        "code=TOO_LARGE",
        "code!=FULL",
        "native_code=MSG_SIZE_TOO_LARGE",
        "native_code~^MSG",
        " kind = permanent ",
        "kind!=retriable",
        "reason~timed?.out",
        "id=order-7",
        "position=p-1",
        "attempts=3",
        "attempts>=3",
        "attempts_total>3",
        "hops<=1",
        "size<1000",
        "age>PT1H",
        "age<PT3H",
        "header.tenant=acme",
        "header.tenant=zeta",
        "header.tenant~^z",
        "header.empty=",
        "header.none=",
        "stage=",
        "run!=x",
        "maybe_delivered=true",
        "maybe_delivered!=false",
    ],
)
def test_a_condition_that_is_true_admits(text: str) -> None:
    assert admits(text)
    assert str(Selection.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["kind=permanen", "kind!=permanent", "reason~^out", "attempts>3", "age>PT3H", "header.tenant!=acme", "code~^LARGE"],
)
def test_a_condition_that_is_false_does_not_admit(text: str) -> None:
    assert not admits(text)


def test_all_conditions_must_be_true() -> None:
    assert admits("kind=permanent", "attempts=3")
    assert not admits("kind=permanent", "attempts=4")
    assert admits()
    assert str(Selection()) == "all"


def test_what_is_unknown_is_neither_old_nor_young_nor_counted() -> None:
    bare = Letter(position="p", message=Message(value=b"v"), context=ErrorContext())
    for text in ("age>PT0S", "age<P1D", "attempts<9", "attempts!=1"):
        assert not admits(text, letter=bare)


def test_letters_are_named_by_id_or_position() -> None:
    for names in (["order-7"], ["p-1", "x"]):
        assert Selection().of(names).admits(LETTER, NOW)
    assert not Selection().of(["order-8"]).admits(LETTER, NOW)
    assert not Selection().of([]).admits(LETTER, NOW)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a condition; write NAME=VALUE"),
        ("permanent", "is not a condition"),
        ("knd=permanent", "did you mean 'kind'"),
        ("kind>permanent", "compared by =, != or ~"),
        ("reason~(", "not a regular expression"),
        ("attempts~3", "a number is compared by"),
        ("attempts=three", "not a whole number"),
        ("age=PT1H", "compared by < or >"),
        ("age>1h", "ISO-8601"),
        ("code=TooLarge", "did you mean 'TOO_LARGE'"),
        ("code=404", "the client's own word is native_code"),
        ("maybe_delivered=perhaps", "true or false"),
        ("maybe_delivered~true", "true or false"),
    ],
)
def test_a_condition_that_does_not_parse_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Selection.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert admits(text) in {True, False}


free = st.tuples(st.sampled_from([*(TEXTS.keys() - {"code"}), "header.x"]), st.text(max_size=10))


@given(free | st.tuples(st.just("code"), st.sampled_from(Code)))
def test_equal_and_unequal_exclude_each_other(condition: tuple[str, str]) -> None:
    name, value = condition
    assert admits(f"{name}={value}") != admits(f"{name}!={value}")


@given(st.sampled_from([*NUMBERS]), st.integers(-5, 10))
def test_a_number_is_less_equal_or_greater(name: str, value: int) -> None:
    assert [admits(f"{name}{sign}{value}") for sign in "<=>"].count(True) == 1


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a*)*b", "a{1,900}a{1,900}$"])
def test_no_pattern_takes_more_than_linear_time(pattern: str) -> None:
    where = Selection.parse(f"reason~{pattern}")
    began = time.process_time()
    where.admits(about("a" * 50_000 + "!"), NOW)
    assert time.process_time() - began < 5, "a backtracking engine never ends here"


@pytest.mark.parametrize("pattern", ["(?=a)", r"(a)\1", "(", "a{1000}{1000}"])
def test_a_pattern_that_would_need_backtracking_is_refused_with_one_line(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="not a regular expression of RE2") as caught:
        Selection.parse(f"reason~{pattern}")
    assert "\n" not in str(caught.value)


def test_text_with_half_a_character_is_searched_too() -> None:
    assert Selection.parse("reason~time").admits(about("\ud800 timeout"), NOW)


EACH = [
    LETTER,
    replace(LETTER, position="p-2", context=None),
    replace(LETTER, position="p-3", context=ErrorContext(kind="expired")),
    replace(LETTER, position="p-4", signed=False),
    *(
        Letter(position=f"p-{number}", message=attach(LETTER.message, context, **STYLE))
        for number, context in enumerate(
            (CONTEXT, replace(CONTEXT, kind="expired", code=None), ErrorContext()), start=5
        )
    ),
]


CONDITIONS = (
    *("code=TOO_LARGE", "code!=EXPIRED", "kind~e", "reason~read", "attempts>2", "maybe_delivered=false", "hops<1"),
    *("id=order-7", "size>3", "header.tenant=acme", "age>PT1H", "target=", "position!=p-5", "native_code~M"),
)


@given(
    st.lists(st.sampled_from(CONDITIONS), max_size=3),
    st.lists(st.sampled_from(EACH), min_size=1),
)
def test_letters_of_a_batch_are_selected_as_they_are_one_by_one(texts: list[str], letters: list[Letter]) -> None:
    selection = Selection.parse(*texts)
    wanted = [
        index
        for index, letter in enumerate(letters)
        if selection.admits(replace(letter, context=context_of(letter)), NOW)
    ]
    assert list(selection.admitted(LetterBatch.of(letters), range(len(letters)), NOW)) == wanted
