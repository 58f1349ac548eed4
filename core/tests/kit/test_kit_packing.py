"""Headers that a broker can carry are its own attributes, and nothing is lost of the rest."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.message import Headers
from redelivery.kit.packing import (
    as_text,
    from_portable,
    hashed_id,
    pack_headers,
    portable,
    quoted_id,
    unpack_headers,
    unquoted_id,
)

NAMES = st.text(max_size=3) | st.sampled_from(["a", "b", "content-type"])
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=4) | st.just(b"text"))).map(tuple)


def plain(name: str, value: bytes) -> str | None:
    return as_text(value) if name.isascii() and name and value else None


def travel(headers: Headers, also: dict[str, bytes | None] | None = None) -> Headers:
    native, packed = pack_headers(headers, plain)
    carried = {name: text.encode() for name, text in native.items()}
    return unpack_headers(json.loads(json.dumps(packed)), {**carried, **(also or {})})


@given(HEADERS)
def test_headers_come_back_as_they_were_sent(headers: Headers) -> None:
    assert travel(headers) == headers


def test_a_header_that_loses_nothing_is_an_attribute_of_its_own() -> None:
    native, packed = pack_headers((("a", b"1"), ("a", b"2"), ("b", b"\xff"), ("c", None)), plain)
    assert native == {"a": "2"}, "the last is what readers of Connect's headers take"
    assert packed == {"headers": [["a", "1"], "a", ["b", {"base64": "/w=="}], ["c", None]]}


def test_one_plain_header_needs_no_packing() -> None:
    assert pack_headers((("a", b"1"),), plain) == ({"a": "1"}, {})
    assert pack_headers((), plain) == ({}, {})


def test_headers_that_somebody_else_added_come_last_and_removed_ones_are_gone() -> None:
    headers = (("b", b"1"), ("a", b"2"))
    assert travel(headers, {"z": b"3", "y": None}) == (*headers, ("y", None), ("z", b"3"))
    _, packed = pack_headers(headers, plain)
    assert unpack_headers(packed, {"a": b"2"}) == (("a", b"2"),)


@pytest.mark.parametrize("damaged", [[["a"]], [3], [["a", {"base64": "*"}]], [["a", {}]]])
def test_a_damaged_list_is_told(damaged: list) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        unpack_headers({"headers": damaged}, {})


@given(st.none() | st.binary())
def test_bytes_survive_json(value: bytes | None) -> None:
    assert from_portable(json.loads(json.dumps(portable(value)))) == value
    assert from_portable(portable(value, lambda _: None)) == value


@given(st.text(), st.text())
def test_two_ids_are_never_taken_for_one(one: str, other: str) -> None:
    def valid(text: str) -> bool:
        return text.isascii() and text.isalnum() and len(text) <= 3

    assert (hashed_id(one, valid) == hashed_id(other, valid)) == (one == other)
    assert valid(hashed_id(one, valid)) or hashed_id(one, valid).startswith("sha256-")


@pytest.mark.parametrize("escape", ["%", "=", "_"])
@given(value=st.text(st.characters() | st.sampled_from("%=_A41")))
def test_a_quoted_id_has_safe_characters_only_and_is_the_same_text_again(escape: str, value: str) -> None:
    quoted = quoted_id(value, "abcABC0123456789_", escape)
    assert set(quoted) <= set("abcABCDEF0123456789_" + escape)
    assert unquoted_id(quoted, escape) == value


def test_a_quoted_id_that_is_damaged_is_told() -> None:
    for damaged in ("a%", "a%4", "%GG", "%FF", "a% 4"):
        with pytest.raises(ValueError):  # noqa: PT011 - Python's own words
            unquoted_id(damaged)
