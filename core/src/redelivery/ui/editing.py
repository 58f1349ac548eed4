"""The form in which one letter is edited, and the patch that its answers are (`deadletters.patching.Patch`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redelivery.base import verbatim
from redelivery.base.rendering import harmless
from redelivery.contract.broker import Letter
from redelivery.errors import ConfigurationError
from redelivery.ui.showing import Mask

#: Characters of a body that a form takes: more than its bytes are, when a form is percent-encoded.
_LONGEST: Final = 1_000_000
#: Lines of a body that a form takes: to compare two bodies takes a time that grows with the square of them.
_LINES: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The body of a letter in a form.

    Attributes:
        text: JSON for people; None: it cannot be edited here.
        why: it cannot.
    """

    text: str | None = None
    why: str = ""


def body_of(letter: Letter, mask: Mask) -> Body:
    """Return a letter's body in the form that is edited."""
    try:
        text = (letter.message.value or b"").decode("utf-8")
        shown = verbatim.pretty(verbatim.loads(text))
    except (ValueError, RecursionError):
        return Body(why="The body is not JSON in UTF-8 with each name once, so it cannot be edited here.")
    if _is_long(shown):
        return Body(why="The body is too long to be edited here; use redrive --patch.")
    if mask(shown) != shown:
        return Body(why="A part of the body is masked, so it cannot be edited here.")
    # In strings alone: a browser would show nothing of them, or reorder what is around them.
    return Body(text="".join(each if harmless(each, keep="\n") == each else _escaped(each) for each in shown))


def _is_long(text: str) -> bool:
    return len(text) > _LONGEST or text.count("\n") >= _LINES


def _escaped(character: str) -> str:
    """Return a character as JSON escapes it."""
    return json.dumps(character)[1:-1] if character > "\x7f" else f"\\u{ord(character):04x}"


def patch_of(letter: Letter, answers: Mapping[str, str], mask: Mask) -> str:
    """Return the patch, as JSON, that makes of a letter what a form says.

    Args:
        letter: its present state.
        answers: `body`: its JSON; `set`: headers, a line each (`name: value`); `unset`: names of headers, a line each;
            `new_key`: "1" where `key` is the new one.
        mask: as of `body_of`.

    Raises:
        ConfigurationError: an answer is wrong, or nothing is changed.
    """
    form: dict[str, Any] = {}
    body = body_of(letter, mask)
    if body.text is not None and "body" in answers:
        form["body"] = _operations((letter.message.value or b"").decode("utf-8"), answers["body"])
    given, gone = _headers(answers.get("set", "")), _lines(answers.get("unset", ""))
    if given or gone:
        form["headers"] = {"set": given, "unset": gone}
    if answers.get("new_key") == "1":
        form["key"] = answers.get("key", "")
    if not any(form.values()) and "key" not in form:
        raise ConfigurationError("nothing is changed: edit the body, the headers or the key")
    return verbatim.dumps(verbatim.of({name: each for name, each in form.items() if each or name == "key"}))


def _operations(before: str, after: str) -> list[Any]:
    """Return the JSON Patch from one JSON text to another. Raises ConfigurationError."""
    import jsonpatch  # noqa: PLC0415 - of the extra

    try:
        new = verbatim.loads(after.replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the new body is not JSON with each name once: {error}") from None
    if _is_long(verbatim.pretty(new)):
        raise ConfigurationError("the new body is too long to be compared here; use redrive --patch")
    return list(jsonpatch.JsonPatch.from_diff(verbatim.loads(before), new, dumps=verbatim.dumps).patch)


def _headers(text: str) -> dict[str, str]:
    found = {}
    for line in _lines(text):
        name, sign, value = line.partition(":")
        if not sign or not name.strip():
            raise ConfigurationError(f"headers: {line[:60]!r}: write a line for each, as name: value")
        found[name.strip()] = value.strip()
    return found


def _lines(text: str) -> list[str]:
    return [each.strip() for each in text.splitlines() if each.strip()]
