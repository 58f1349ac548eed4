"""`Patch`: how letters are edited before they are sent back, and what that changes in one (`diff`).

A patch changes the message as a redrive would send it: the body as JSON (JSON Patch, RFC 6902), headers, key and
destination. All else stays as it was, to the byte where it can: see `redelivery.base.verbatim`.
"""

from __future__ import annotations

import base64
import binascii
import copy
import difflib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import re2
import yaml

from redelivery.base import verbatim
from redelivery.base.rendering import harmless
from redelivery.base.secrets import REDACTED, holds_secret, redact
from redelivery.base.urls import unknown
from redelivery.contract.message import Header, Message
from redelivery.deadletters.operations import Stays
from redelivery.errors import ConfigurationError
from redelivery.formats import dialects

_NOT_JSON: Final = "the patch does not fit: its body is not JSON in UTF-8 with each name once"
_FIELDS: Final = ("body", "headers", "key", "destination")
_BASE64: Final = "base64"
#: What operations of RFC 6902 need beside `path`.
_NEEDS: Final = {
    "add": "value",
    "replace": "value",
    "test": "value",
    "move": "from",
    "copy": "from",
    "remove": "path",
}
_LARGEST: Final = 1024 * 1024
#: A diff compares so many lines of each side, and shows so many; a line has so many characters.
_COMPARED: Final = 2_000
_SHOWN: Final = 100
_WIDEST: Final = 400
_HEADER: Final = "header "
_SECRET_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """An edit of letters. Plain data; `Patch.read` checks it.

    Attributes:
        body: the operations of a JSON Patch, values as of `verbatim.of`; empty: the body stays.
        set_headers: each replaces all headers of its name, in the place of the first one, or comes last.
        unset_headers: names of headers that go.
        keys: the new key, as a tuple of one; empty: the key stays.
        destination: where the message goes, as the destination's broker names it; None: where it would go unedited.
    """

    body: tuple[Mapping[str, Any], ...] = ()
    set_headers: tuple[Header, ...] = ()
    unset_headers: tuple[str, ...] = ()
    keys: tuple[bytes | None, ...] = ()
    destination: str | None = None

    @classmethod
    def read(cls, source: Path | str | Mapping[str, Any]) -> Self:
        """Return the patch in a file of JSON or YAML, or in a mapping of the same form.

        Raises:
            ConfigurationError: it cannot be read, or is not a patch; a library is missing.
        """
        if isinstance(source, Mapping):
            return cls._of(source, "patch")
        path = Path(source)
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST + 1)
            if len(data) > _LARGEST:
                raise ConfigurationError(f"{str(path)!r}: a patch has at most {_LARGEST:,} bytes")
            text = data.decode("utf-8")
        except OSError as error:
            raise ConfigurationError(f"{str(path)!r}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{str(path)!r}: it is not UTF-8 text") from error
        return cls._of(_parsed(text, str(path)), str(path))

    @classmethod
    def _of(cls, form: Any, where: str) -> Self:
        try:
            patch = cls._checked(form)
        except (ValueError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise ConfigurationError(f"{where}: {why}") from error
        if patch == cls():
            raise ConfigurationError(f"{where}: the patch changes nothing; give one of: {', '.join(_FIELDS)}")
        return patch

    @classmethod
    def _checked(cls, form: Any) -> Self:
        if not isinstance(form, Mapping):
            raise ConfigurationError(f"a patch is a mapping of {', '.join(_FIELDS)}")
        for name in form:
            if name not in _FIELDS:
                raise unknown("field", str(name), _FIELDS)
        given, gone = _headers(form.get("headers") or {})
        destination = form.get("destination")
        if destination is not None and (not isinstance(destination, str) or not destination):
            raise ConfigurationError("destination: the name of a queue or topic, as text")
        return cls(
            body=_operations(form.get("body") or []),
            set_headers=tuple((name, _bytes(f"headers: {name}", value)) for name, value in given.items()),
            unset_headers=tuple(gone),
            keys=(_bytes("key", form["key"]),) if "key" in form else (),
            destination=destination,
        )

    @property
    def form(self) -> str:
        """What tells this patch from any other: two of one form change a message in the same way."""
        parts = [
            [verbatim.dumps(dict(sorted(each.items()))) for each in self.body],
            [[name, None if value is None else value.hex()] for name, value in self.set_headers],
            self.unset_headers,
            [None if key is None else key.hex() for key in self.keys],
            self.destination,
        ]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()

    def apply(self, message: Message) -> Message:
        """Return the edited message.

        Raises:
            Stays: the patch does not fit this message: an operation cannot be applied, or a `test` fails.
        """
        gone = set(self.unset_headers)
        return replace(
            message,
            value=_patched(message.value, self.body) if self.body else message.value,
            key=self.keys[0] if self.keys else message.key,
            headers=tuple(_set(message.headers, gone, dict(self.set_headers))),
            destination=message.destination if self.destination is None else self.destination,
        )


def _set(headers: Sequence[Header], gone: set[str], given: dict[str, bytes | None]) -> Iterator[Header]:
    seen: set[str] = set()
    for name, value in headers:
        if name in gone or name in seen:
            continue
        if name in given:
            seen.add(name)
        yield name, given.get(name, value)
    for name, value in given.items():
        if name not in seen:
            yield name, value


def _headers(form: Any) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Return the headers to be set, and the names of those that go. Raises ConfigurationError."""
    if not isinstance(form, Mapping) or not {"set", "unset"}.issuperset(form):
        raise ConfigurationError("headers: a mapping of set (a value for each name) and unset (a list of names)")
    given, gone = form.get("set") or {}, form.get("unset") or []
    if not isinstance(given, Mapping) or not _are_texts(given):
        raise ConfigurationError("headers: set is a mapping of names to values")
    if not isinstance(gone, Sequence) or isinstance(gone, str) or not _are_texts(gone):
        raise ConfigurationError("headers: unset is a list of names")
    for name in (*given, *gone):
        if not name or name in dialects.MARKERS:
            raise ConfigurationError(f"headers: {name!r} is not yours to change; redelivery counts hops there")
        if name in given and name in gone:
            raise ConfigurationError(f"headers: {name!r} is both set and unset; keep one")
    return given, gone


def _are_texts(names: Mapping[Any, Any] | Sequence[Any]) -> bool:
    return all(isinstance(name, str) for name in names)


def _bytes(what: str, value: Any) -> bytes | None:
    """Return a header or key: text, null, or bytes as `base64: TEXT`. Raises ConfigurationError."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, Mapping) and [*value] == [_BASE64]:
            return base64.b64decode(value[_BASE64], validate=True)
    except (UnicodeEncodeError, binascii.Error, TypeError, ValueError):
        pass
    raise ConfigurationError(f"{what}: a text (a number in quotes), null, or {_BASE64}: TEXT")


def _operations(body: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the checked operations of a JSON Patch. Raises ConfigurationError."""
    if not isinstance(body, Sequence) or isinstance(body, str):
        raise ConfigurationError("body: a JSON Patch is a list of operations")
    found = []
    for number, each in enumerate(body, 1):
        kind = each.get("op") if isinstance(each, Mapping) else None
        if not isinstance(kind, str) or kind not in _NEEDS:
            raise ConfigurationError(f"body: operation {number} has no `op` of {', '.join(_NEEDS)}")
        if not isinstance(each.get("path"), str) or _NEEDS[kind] not in each:
            raise ConfigurationError(f"body: operation {number} ({kind}) needs `path` and `{_NEEDS[kind]}`")
        known = {"op", "path", _NEEDS[kind]}
        if extra := sorted(map(str, set(each) - known)):
            raise unknown(f"member of body's operation {number}", extra[0], known)
        found.append({name: verbatim.of(value) for name, value in each.items()})
        _check(found[-1], number)
    return tuple(found)


def _library() -> Any:
    """Return `jsonpatch`. Raises ConfigurationError: it is not installed."""
    try:
        import jsonpatch  # noqa: PLC0415 - of the extra `cli`
    except ImportError as error:
        raise ConfigurationError("jsonpatch is not installed: pip install 'redelivery-core[cli]'") from error
    return jsonpatch


def _check(operation: Mapping[str, Any], number: int) -> None:
    """Raises ConfigurationError: an operation can never be applied."""
    library = _library()
    try:
        library.JsonPatch([operation])
        for name in ("path", "from"):
            library.JsonPointer(operation.get(name, ""))
    except (library.JsonPatchException, library.JsonPointerException, TypeError, AttributeError) as error:
        raise ConfigurationError(f"body: operation {number}: {error}") from error


def _patched(value: bytes | None, operations: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a body with these operations applied. Raises Stays."""
    try:
        text = (value or b"").decode("utf-8")
        document = verbatim.loads(text)
    except (ValueError, RecursionError):
        raise Stays(_NOT_JSON) from None
    for number, operation in enumerate(operations, 1):
        document = _apply(operation, document, number)
    try:
        return verbatim.dumps(document, text).encode()
    except (ValueError, RecursionError):
        raise Stays("the patch does not fit: the body would be nested too deeply") from None


def _apply(operation: Mapping[str, Any], document: Any, number: int) -> Any:
    """Return the document, changed in place, or another one. Raises Stays."""
    library = _library()
    own = copy.deepcopy(operation)  # the document gets its value, and later operations may change that
    try:
        return library.JsonPatch([own]).apply(document, in_place=True)
    except (library.JsonPatchException, library.JsonPointerException, TypeError, LookupError, ValueError) as error:
        failed = isinstance(error, library.JsonPatchTestFailed)
        why = "is not true of it" if failed else "cannot be applied to its body"
        raise Stays(f"the patch does not fit: operation {number} ({own['op']} {own['path']}) {why}") from None
    except RecursionError:
        raise Stays(_NOT_JSON) from None


class _Loader(yaml.SafeLoader):
    """Reads YAML into the values of JSON: numbers to the last digit, and no name twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise ValueError(f"{twice}: written twice; keep one")
        return super().construct_mapping(node, deep=deep)


def _number(loader: _Loader, node: yaml.ScalarNode) -> verbatim.Number:
    try:
        return verbatim.Number(loader.construct_scalar(node))
    except ValueError:
        raise ValueError(f"{node.value}: not a number as JSON writes it; a text needs quotes") from None


def _refuse(_: _Loader, node: yaml.ScalarNode) -> Any:
    raise ValueError(f"{node.value}: JSON has no dates; a text needs quotes")


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _refuse)


def _parsed(text: str, where: str) -> Any:
    """Return the form of a patch. Raises ConfigurationError."""
    try:
        if text.lstrip().startswith("{"):
            return verbatim.loads(text)
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader  # nosec B506
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{where}: not JSON or YAML{at}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where}: not JSON or YAML: {error}") from None


# --- what a patch changes ------------------------------------------------------------------------------------------


def masking(patterns: Sequence[str]) -> Callable[[str], str]:
    """Return what hides all matches of regular expressions (RE2) in a text. Raises ConfigurationError."""
    options = re2.Options()
    options.log_errors = False
    compiled = []
    for each in patterns:
        try:
            compiled.append(re2.compile(each, options))
        except re2.error as error:
            raise ConfigurationError(f"--mask {each!r}: not a regular expression of RE2") from error

    def masked(text: str) -> str:
        text = text.encode("utf-8", "replace").decode("utf-8")
        for pattern in compiled:
            text = pattern.sub(REDACTED, text)
        return text

    return masked


def diff(
    name: str, before: Message, after: Message, *, mask: Callable[[str], str] = lambda text: text
) -> Iterator[str]:
    """Return what an edit changes in a message, as lines of a unified diff that are safe to show.

    Bodies in JSON are shown with a line for each member. Secrets are redacted. A long diff is cut, and says so.

    Args:
        name: of the letter.
        before: the message as a redrive would send it unedited.
        after: as it would send it edited.
        mask: hides parts of a line (`masking`).
    """
    old, new = _lines(before), _lines(after)
    yield harmless(f"--- {name}")
    yield harmless(f"+++ {name}, edited")
    if max(len(old), len(new)) > _COMPARED:
        yield f"(its body has more than {_COMPARED:,} lines: too long to be compared)"
        return
    for number, line in enumerate(list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]):
        if number == _SHOWN:
            yield "(the rest of this diff is not shown)"
            return
        text = harmless(redact(mask(_without_secret(line))), keep="\t")
        yield text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"


def _lines(message: Message) -> list[str]:
    """Return a message for people, a line for each of its parts."""
    lines = [f"destination: {message.destination}"] if message.destination is not None else []
    if message.key is not None:
        lines.append(f"key: {_shown(message.key)}")
    for name, value in message.headers:
        lines.append(f"{_HEADER}{name}: {_shown(value)}")
    try:
        body = verbatim.pretty(verbatim.loads((message.value or b"").decode("utf-8")))
    except (ValueError, RecursionError):
        body = _shown(message.value)
    return [*lines, "", *body.split("\n")]


def _without_secret(line: str) -> str:
    """Return a line of a diff without the value of a header that holds a secret by its name."""
    if not line[1:].startswith(_HEADER):
        return line
    name, sign, _ = line[1 + len(_HEADER) :].partition(": ")
    secret = sign and (holds_secret(name) or name.lower() in _SECRET_HEADERS)
    return f"{line[0]}{_HEADER}{name}: {REDACTED}" if secret else line


def _shown(value: bytes | None) -> str:
    if value is None:
        return "(null)"
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return f"({len(value):,} bytes: {value[:64].hex()})"
