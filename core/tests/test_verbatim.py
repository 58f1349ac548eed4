"""JSON that is edited keeps every character that the edit does not touch."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonpatch  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.base import verbatim

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
TREES = st.recursive(LEAVES, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=12)


def edited(text: str, *operations: dict[str, Any]) -> str:
    own = [{name: verbatim.of(value) for name, value in each.items()} for each in operations]
    return verbatim.dumps(jsonpatch.JsonPatch(own).apply(verbatim.loads(text), in_place=True), text)


@given(TREES, st.sampled_from([None, 0, 1, "\t"]), st.booleans(), st.sampled_from([",", " , ", ",\n"]))
def test_what_is_not_changed_is_written_as_it_was_read(
    tree: Any, indent: int | str | None, ascii_: bool, apart: str
) -> None:
    text = " " + json.dumps(tree, indent=indent, ensure_ascii=ascii_, separators=(apart, " : ")) + "\n"
    assert verbatim.dumps(verbatim.loads(text), text) == text


@given(TREES, TREES, st.sampled_from([None, 1]))
def test_an_edit_means_what_it_means_elsewhere(tree: Any, new: Any, indent: int | None) -> None:
    text = json.dumps({"kept": tree, "list": [tree, 1.0]}, indent=indent)
    operations = [
        {"op": "add", "path": "/new", "value": new},
        {"op": "add", "path": "/list/1", "value": new},
        {"op": "move", "from": "/kept", "path": "/moved"},
        {"op": "remove", "path": "/list/0"},
    ]
    assert json.loads(edited(text, *operations)) == jsonpatch.apply_patch(json.loads(text), operations)


def test_numbers_escapes_and_blanks_elsewhere_survive() -> None:
    text = '{"n": 123456789012345678901234567890.1000,\n "one": 1.0, "e":1E+4, "s": "\\u00e9\\/\\ud800",\n  "x": 1}\n'
    assert edited(text, {"op": "replace", "path": "/x", "value": 2}) == text.replace('"x": 1', '"x": 2')
    assert edited(text, {"op": "add", "path": "/y", "value": Decimal("1.10")}) == text.replace(
        '"x": 1', '"x": 1,\n  "y": 1.10'
    )
    assert edited('{"a":[1,2, 3.0]}', {"op": "remove", "path": "/a/0"}) == '{"a":[2, 3.0]}'
    assert edited('{"a": 1}', {"op": "move", "from": "/a", "path": "/b"}) == '{"b": 1}'


def test_numbers_are_compared_by_what_they_mean_and_never_with_true() -> None:
    text = '{"a":1.0,"b":true,"c":1e1000000000000000000000}'
    assert edited(text, {"op": "test", "path": "/a", "value": 1}) == text
    for path, value in (("/a", True), ("/b", 1), ("/a", "1"), ("/c", 2)):
        with pytest.raises(jsonpatch.JsonPatchTestFailed):
            edited(text, {"op": "test", "path": path, "value": value})


@pytest.mark.parametrize(
    "bad",
    [
        *("", "{", '{"a":1,"a":2}', '[{"a":{},"a":1}]', "NaN", "-Infinity", "01", "1.", "+1", "[1,]", "{,}", "1 2"),
        *('"\n"', "\ufeff1", "nul", '{"a" 1}', "{1:2}", "'a'", "[" * 300 + "]" * 300, "[" * 100_000),
    ],
)
def test_what_is_not_json_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        verbatim.loads(bad)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), b"bytes", {1: 2}, object(), Decimal("NaN")])
def test_what_json_cannot_hold_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        verbatim.of([bad])


def test_people_see_a_line_for_each_member_and_every_digit() -> None:
    assert verbatim.pretty(verbatim.loads('{"a":[1.00,{}],"b":{"c":[]}}')).split("\n") == [
        "{",
        '  "a": [',
        "    1.00,",
        "    {}",
        "  ],",
        '  "b": {',
        '    "c": []',
        "  }",
        "}",
    ]
