"""Secrets: references that are resolved where they are used, and redaction of every text that leaves the process.

A secret is written as a reference, `env:NAME` or `file:PATH`. Its value is a `Secret`, whose `repr` shows nothing. Each
value that is resolved, or written out in a URL that is opened, is remembered; `redact` replaces it wherever it appears.
Patterns find other secrets. Every function here takes time linear in its text.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from redelivery.base.restrictions import restrictions
from redelivery.errors import ConfigurationError, InvalidURL, MissingSecret

REDACTED: Final = "***"
#: Longer texts are cut before the search, which takes time; people do not read so much. Characters.
LONGEST: Final = 256 * 1024
#: Shorter secrets are not searched for by value: they appear in too many words. Characters.
SHORTEST: Final = 6
#: Values that are remembered; the oldest are forgotten first.
REMEMBERED: Final = 1000
#: A file with more than this is not a secret. Bytes.
LARGEST: Final = 1 << 20
#: How much of a reference an error quotes. Characters.
_SHOWN: Final = 200
#: Shorter lines of a multi-line key are not searched for. Characters.
_LONG_LINE: Final = 12

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_WORD: Final = re.compile(r"\S+")
_URL_WORD: Final = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*+://[^\s\"\'<>{}]+")
#: A reference, and nothing else; in a URL a percent sign may stand for its colon.
_REFERENCE: Final = re.compile(r"(?:env|file)(?::|%3[Aa])[\w./~%-]+")
#: `sas` counts where it is a word: `sasl_plaintext` is a protocol.
_WORDS: Final = (
    r"secret|passw|passphrase|token|credential|(?:access|account|api).?key|access.?signature|private.?key|key\.pem|external.?id|"
    r"(?<![a-z])sas(?![a-z])|connection.?string|jaas|oauthbearer\.config"
)
_SECRET_NAME: Final = re.compile(f"(?i:{_WORDS})")
#: Names of options whose value is a secret: fewer. Hiding too much does no harm; refusing too much does.
_SECRET_OPTION: Final = re.compile(
    r"(?i)passw|passphrase|secret$|client.?secret|(?:access|account|api|private|sas).?key$|key\.pem$|(?:session|sas).?token$|"
    r"signature$|connection.?string|jaas|external.?id$|oauthbearer\.config$|(?:^|\.)token$"
)
_VALUE: Final = r"""b?\"(?:[^\"\\]|\\.)*+\"|b?'(?:[^'\\]|\\.)*+'|[^\s;,&\"'}]+"""
#: Only pairs with a secret name match: another pair must not swallow one that begins in its value (`url: x?sas=...`).
_PAIR: Final = re.compile(
    rf"(?P<name>(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]*?(?i:{_WORDS})[A-Za-z0-9_.-]{{0,64}}+)"
    rf"(?P<sign>[\"']?\s*+[=:]\s*+)(?P<value>{_VALUE})"
)
#: An XML element, as services answer in: its text up to the next tag.
_ELEMENT: Final = re.compile(rf"<(?P<name>[A-Za-z0-9_.:-]*?(?i:{_WORDS})[A-Za-z0-9_.:-]{{0,64}}+)>(?P<value>[^<]+)")
#: Each name that `_WORDS` finds holds one of these, in small letters.
_NEEDED: Final = (
    *("secret", "passw", "passphrase", "token", "credential", "access", "account", "api", "private", "key.pem"),
    *("external", "sas"),
    *("connection", "jaas", "oauthbearer.config"),
)
#: Other characters that a pattern takes for a letter of ASCII where its case does not count.
_LOOKALIKES: Final = {0x130: "i", 0x131: "i", 0x17F: "s", 0x212A: "k"}
_AUTHORIZATION: Final = re.compile(r"\b(?P<how>(?i:bearer|basic))\s+(?=[^\s,;\"']*[0-9A-Z=])[^\s,;\"']{8,}")
#: In PEM; it is public, and its letters may spell anything.
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]*-----END CERTIFICATE-----")


_WRITE_A_REFERENCE: Final = (
    "write a reference in its place, as in 'env:NAME' (a variable where it is used) or 'file:PATH'"
)


class Secret(str):
    """The value of a secret. It is a text like any other, but its `repr` does not show it.

    Attributes:
        reference: what it was resolved from; empty where it was written out.
    """

    __slots__ = ("reference",)

    reference: str

    def __new__(cls, value: str, reference: str = "") -> Self:
        made = super().__new__(cls, value)
        made.reference = reference
        return made

    def __repr__(self) -> str:
        return repr(REDACTED)


class Redacted(str):
    """A text that is already redacted, in its parts: `guard` logs it whole."""

    __slots__ = ()


class _Remembered:
    """Secret values that this process has seen, each with its spellings; the most recent is the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, frozenset[str]] = {}
        self._spellings: tuple[str, ...] = ()

    def add(self, value: str) -> None:
        with self._lock:
            known = self._values.pop(value, None)
            self._values[value] = known or frozenset(_spellings(value))
            if known:
                return
            while len(self._values) > REMEMBERED:
                del self._values[next(iter(self._values))]
            every = frozenset().union(*self._values.values())
            self._spellings = tuple(sorted(every, key=len, reverse=True))

    def hide(self, text: str) -> str:
        for each in self._spellings:  # one by one: a pattern of all of them is tried at each character, a hundredfold
            if each in text:
                text = text.replace(each, REDACTED)
        return text


_remembered = _Remembered()


def remember(value: str) -> Secret:
    """Have `redact` replace this exact value, and each secret within it, from now on. Return it as a `Secret`.

    A value of fewer than `SHORTEST` characters is not searched for: `guest` appears in too many texts.
    """
    for each in (str(value), *_within(value), *_lines(value)):
        if len(each) >= SHORTEST:
            _remembered.add(each)
    return Secret(value)


def _within(text: str) -> Iterator[str]:
    """Return the secrets within a text: those of its pairs and its URLs. A client may show them without the rest."""
    for pair in _PAIR.finditer(text):
        value = pair["value"].strip("\"'")
        own = holds_secret(value)  # a signature's text begins with its own name
        if holds_secret(pair["name"]) and not own and not is_reference(value):
            yield value
    for word in _URL_WORD.findall(text):
        for each in literal_secrets(word):
            yield from (each, unquote(each), unquote_plus(each))


def _lines(text: str) -> Iterator[str]:
    """Return the lines of a key that has several."""
    lines = text.splitlines()
    yield from (each.strip() for each in lines if len(lines) > 1 and len(each) >= _LONG_LINE and "-----" not in each)


def _spellings(value: str) -> Iterator[str]:
    """Return the value as texts may show it: plain, URL-encoded, within JSON or a Python literal, and within base64."""
    yield from (
        value,
        quote(value, safe="", errors="replace"),
        quote(value, errors="replace"),
        quote_plus(value, errors="replace"),
        json.dumps(value)[1:-1],
        repr(value)[1:-1],
    )
    data = value.encode("utf-8", "surrogateescape" if value.isascii() else "replace")
    for before in range(3):  # base64 spells three bytes at a time: their spelling depends on where they begin
        first, end = -(-before * 4 // 3), (before + len(data)) * 4 // 3
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found = encode(bytes(before) + data).decode("ascii")[first:end]
            if len(found) >= SHORTEST:
                yield found


# --- references ----------------------------------------------------------------------------------------------------


def holds_secret(name: str) -> bool:
    """Whether an option of this name is a secret: only such an option may be a reference."""
    return bool(_SECRET_OPTION.search(name))


def is_reference(value: str) -> bool:
    """Whether a value is a secret reference: `env:NAME` or `file:PATH`."""
    return value.startswith(("env:", "file:"))


def resolve_secret(value: str) -> str:
    """Return the value behind `env:NAME` or `file:PATH`; return any other value unchanged.

    Raises:
        MissingSecret: the variable is not set, or the file cannot be read.
        ConfigurationError: this deployment does not allow the reference. The text never shows a value.
    """
    kind, _, name = value.partition(":")
    if kind not in {"env", "file"} or not name:
        return value
    try:
        found = remember(_variable(name) if kind == "env" else _file(Path(name.removeprefix("//"))))
        return Secret(found, value)
    except (OSError, ValueError, KeyError) as error:  # the last two: the name is empty, or invalid
        if isinstance(error, ConfigurationError):
            raise
        why = {"env": "names a variable that is not set on this machine"}.get(
            kind, f"cannot be read on this machine: {type(error).__name__}"
        )
    raise MissingSecret(f"the secret reference {_quoted(value)} {why}")  # not from it: a decoding error holds the bytes


def renewed(value: str) -> str:
    """Return what a resolved secret is now: one that came from a file is read again, as others may replace the file.

    Raises:
        MissingSecret, ConfigurationError: as `resolve_secret`.
    """
    reference = value.reference if isinstance(value, Secret) else ""
    return resolve_secret(reference) if reference.startswith("file:") else value


def _variable(name: str) -> str:
    restrictions().check_variable(name)
    return os.environ[name]


def _file(path: Path) -> str:
    restrictions().check_file(path)
    with path.open("rb") as file:
        found = file.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise MissingSecret(f"the secret reference {_quoted(f'file:{path}')} has more than {LARGEST} bytes: no secret")
    return found.decode("utf-8").rstrip("\r\n")


def _quoted(text: str) -> str:
    """Return a reference as an error quotes it."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...").encode("ascii", "backslashreplace").decode()


def resolve_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with each secret's reference replaced by its value. Call it only where the client is made.

    Only an option whose name marks a secret is resolved: no other option can make us read a file or a variable.

    Raises:
        ConfigurationError: as `resolve_secret`.
    """
    resolved = dict(options)
    for name, value in options.items():
        if holds_secret(name):
            resolved[name] = resolve_secret(value) if is_reference(value) else remember(value)
        elif is_reference(value):
            why = "only a secret may be a reference, and this option is not a secret; write its value"
            raise ConfigurationError(f"{name}: {why}, not {_quoted(value)}")
        else:
            for each in _within(value):
                remember(each)
    return resolved


# --- URLs ----------------------------------------------------------------------------------------------------------


def literal_secrets(url: str) -> Iterator[str]:
    """Return the secrets written out in a URL, exactly as written: a password, values of secret parameters.

    The URL's own delimiters find them, so white space or an `@` in a password hides nothing. References are not
    secrets.
    """
    found = _userinfo(url)
    if found is not None:
        password = url[found[0] : found[1]]
        if password and not _is_reference_in_url(password):
            yield password
    for start, end in _parameters(url):
        value = url[start:end]
        if value and not _is_reference_in_url(value):
            yield value


def remember_literals(url: str) -> None:
    """Remember the secrets written out in a URL that is about to be opened, as written and decoded."""
    for each in literal_secrets(url):
        for spelling in (each, unquote(each), unquote_plus(each)):
            remember(spelling)


def refuse_password(url: str, *, shown: str = "Spark would show in plans and logs") -> None:
    """Refuse a secret written out in a URL.

    Args:
        url: any text; one that is not a URL holds no secret.
        shown: where others would see it, for the error.

    Raises:
        InvalidURL: it holds a secret that is not a reference.
    """
    if next(literal_secrets(url), None) is not None:
        raise InvalidURL(f"the URL {redact_url(url)!r} holds a password, which {shown}; {_WRITE_A_REFERENCE}")


def refuse_literal(name: str, value: str, *, shown: str = "Spark would show in plans and logs") -> None:
    """Refuse an option that is a secret, or holds one, and is not a reference. Arguments as `refuse_password`.

    Raises:
        ConfigurationError: the text does not show the value.
    """
    # The search leaves out values that we know: a user may have the same name as the password.
    open_ = _CERTIFICATE.sub("", value)
    if (holds_secret(name) and not is_reference(value)) or _without_patterns(open_) != open_:
        raise ConfigurationError(f"the option {name!r} holds a secret, which {shown}; {_WRITE_A_REFERENCE}")


def redact_url(url: str) -> str:
    """Return a URL without the secrets written out in it. References stay, so that it can be opened again."""
    spans = [span for span in (_userinfo(url), *_parameters(url)) if span is not None]
    for start, end in sorted(spans, reverse=True):
        if end > start and not _is_reference_in_url(url[start:end]):
            url = url[:start] + REDACTED + url[end:]
    return url


def _is_reference_in_url(text: str) -> bool:
    return _REFERENCE.fullmatch(text) is not None


def _userinfo(url: str) -> tuple[int, int] | None:
    """Return where the password of a URL is: behind the first colon of what precedes the last `@`."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return None
    begin = scheme.end()
    while begin < len(url) and url[begin] in "/\\":
        begin += 1
    at = url.rfind("@")
    colon = url.find(":", begin, at)
    if at < begin or colon < 0 or any(marker in url[begin:colon] for marker in "/?#@"):
        return None
    return colon + 1, at


def _parameters(url: str) -> Iterator[tuple[int, int]]:
    """Return where the values of secret parameters are, in the query and in the fragment."""
    start = min((at for at in (url.find("?"), url.find("#")) if at >= 0), default=len(url))
    for pair in re.finditer(r"[^?#&;]+", url[start:]):
        name, sign, value = pair[0].partition("=")
        if sign and value and _SECRET_NAME.search(unquote(name)):
            end = start + pair.end()
            yield end - len(value), end


# --- any text ------------------------------------------------------------------------------------------------------


def redact(text: str) -> str:
    """Return text without secrets: those we know, passwords in URLs, and values of secret-looking names.

    A text longer than `LONGEST` is cut.
    """
    return _without_patterns(_remembered.hide(_cut(text)))


def redact_alike(text: str) -> str:
    """Return text without the secrets that the text itself reveals: the same in every process, unlike `redact`."""
    text = _cut(text)
    return _without_patterns(text) if _may_reveal(text) else text


def redact_all(texts: Sequence[str]) -> list[str]:
    """Return each text as `redact` returns it; texts that hold nothing to hide are searched all at once."""
    joined = "\0".join(texts)
    if _remembered.hide(joined) != joined:
        return [redact(text) for text in texts]
    if not _may_reveal(joined) and max(map(len, texts), default=0) <= LONGEST:
        return list(texts)
    return [redact(text) if len(text) > LONGEST or _may_reveal(text) else text for text in texts]


def _may_reveal(text: str) -> bool:
    """Whether a pattern, or the form of a URL, may reveal a secret in a text: a fast search for what each needs."""
    if "@" in text or ("=" in text and ("?" in text or "#" in text)):
        return True
    small = (text if text.isascii() else text.translate(_LOOKALIKES)).lower()
    if "bearer" in small or "basic" in small:
        return True
    return any(sign in text for sign in ":=<") and any(word in small for word in _NEEDED)


def _without_patterns(text: str) -> str:
    """Return text without the secrets that the text around them reveals."""
    if _SCHEME.match(text) and "\n" not in text and not re.search(r"\s", text[text.rfind("@") + 1 :]):
        text = redact_url(text)  # the whole of it is a URL, whose password may hold white space
    elif "://" in text:
        text = _WORD.sub(_without_password, text)
    text = _AUTHORIZATION.sub(lambda match: f"{match['how']} {REDACTED}", text)
    text = _ELEMENT.sub(lambda match: f"<{match['name']}>{REDACTED}", text)
    return _PAIR.sub(lambda match: match["name"] + match["sign"] + _hidden(match["value"]), text)


_guarded: Final[set[str]] = set()


def _guard(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    def guarded(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if record.name.partition(".")[0] in _guarded:
            _redact_record(record)
        return record

    return guarded


def _redact_record(record: logging.LogRecord) -> None:
    if isinstance(record.msg, Redacted):
        return
    try:
        said = record.getMessage()
    except Exception:  # noqa: BLE001 - whatever a client's arguments raise, a log line must not
        said = f"{record.msg} {record.args!r}"
    safe = redact(said)
    if safe != said:
        record.msg, record.args = safe, ()
    if record.exc_info and record.exc_info[1] is not None:
        told = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        safe = redact(told)
        if safe != told:
            record.exc_info, record.exc_text = None, safe


def guard_loggers(*packages: str) -> None:
    """Redact the log records of these packages before any handler sees them, from existing and later loggers.

    For a client that writes credentials into its log. Call it where the client is made. A second call changes nothing.
    """
    if not _guarded:
        logging.setLogRecordFactory(_guard(logging.getLogRecordFactory()))
    _guarded.update(packages)


def redact_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options as they may be logged or written: secret-looking names lose their value, URLs their password."""
    return {
        name: REDACTED if _SECRET_NAME.search(name) and not is_reference(value) else redact(value)
        for name, value in options.items()
    }


def _hidden(value: str) -> str:
    """Return the replacement of a hidden value; its quotes stay, so that JSON remains JSON."""
    if _is_reference_in_url(value):
        return value
    quote_ = value[-1] if value[-1:] in {'"', "'"} and len(value) > 1 else ""
    return f"{quote_}{REDACTED}{quote_}"


def _cut(text: str) -> str:
    """Return at most `LONGEST` characters of a text, cut between words: half a secret would not be found."""
    if len(text) <= LONGEST:
        return text
    kept = text[:LONGEST]
    words = re.search(r"\s\S*\Z", kept[-SHORTEST * 1024 :])
    return kept[: len(kept) - len(words[0])] + "…" if words else REDACTED


def _without_password(word: re.Match[str]) -> str:
    """Return a word without the passwords of the URLs in it: each ends at the word's last `@`."""
    text = word[0]
    at, begin = text.rfind("@"), text.find("://")
    while 0 <= begin < at:
        begin += 3
        end = next((n for n in range(begin, at + 1) if text[n] in ":/@"), at)
        if text[end] == ":":
            password = text[end + 1 : at]
            kept = password if _is_reference_in_url(password) else REDACTED
            return f"{text[: end + 1]}{kept}{text[at:]}"
        begin = text.find("://", end)
    return text
