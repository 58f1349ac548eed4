"""Options, secret references and redaction: what is written by people and must never leak.

A secret is a reference, `env:NAME` or `file:PATH`, resolved on the machine that uses it. This file must not know any
option by name; `spark/options.py` and the plugins do.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from redelivery.errors import ConfigurationError, InvalidURL, UnknownOption

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")
# Each begins only where a run of its characters begins: else a long run is read again from every place in it.
_USERINFO = re.compile(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z0-9+.-]++://)(?P<user>[^\s:/@]*):(?P<password>[^\s]*)@")
# A password that is one, and nothing besides.
_REFERENCE = re.compile(r"(?:env|file):[\w./~-]+")
# How a client identifies itself (`sasl.mechanism`, `sasl.username`) is no secret, though it begins like a signature.
_SIGNATURE = r"sas(?!l[._-]?(?:mechanism|username))"
_SECRET_WORDS = (
    r"secret|passw|passphrase|token|credential|access.?key|access.?signature|private.?key|key\.pem|"
    rf"{_SIGNATURE}|connection.?string|jaas"
)
_VALUE = r"""\"[^\"]*\"|'[^']*'|[^\s;,&\"'}]+"""
_SECRET_NAME = re.compile(f"(?i:{_SECRET_WORDS})")
# Names of options whose value is a secret: fewer, for what is hidden too often harms nobody, and what is refused does.
_SECRET_OPTION = re.compile(
    r"(?i)passw|passphrase|secret$|client.?secret|(?:access|private|sas).?key$|key\.pem$|(?:session|sas).?token$|"
    r"signature$|connection.?string|jaas"
)
# Only pairs with a secret name match: another pair must not swallow one that begins in its value (`url: x?sas=...`).
_PAIR = re.compile(
    rf"(?P<name>(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]*?(?i:{_SECRET_WORDS})[A-Za-z0-9_.-]{{0,64}}+)"
    rf"(?P<sign>[\"']?\s*[=:]\s*)(?P<value>{_VALUE})"
)
REDACTED = "***"


def scheme_of(url: str) -> str:
    """The lower-case scheme of a URL.

    Raises:
        InvalidURL: there is none; the message shows what one looks like.
    """
    match = _SCHEME.match(url)
    if match is None:
        msg = f"not a destination URL: {redact(url)!r}; it starts with a scheme, as in 'sqlite:orders.db'"
        raise InvalidURL(msg)
    return match.group(1).lower()


def has_scheme(url: str) -> bool:
    """Whether this begins like a URL; a bare name of a queue or topic does not."""
    return _SCHEME.match(url) is not None


def split_url(url: str) -> SplitResult:
    """`urlsplit`, with a clear error in place of Python's own.

    Raises:
        InvalidURL: it does not parse. The URL is shown redacted.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        msg = f"not a valid URL: {redact(url)!r}: {redact(str(error))}"
        raise InvalidURL(msg) from None  # the original text may hold a password
    return parts


def refuse_password(url: str) -> None:
    """Refuse a password in a URL: it would show in plans and logs.

    Raises:
        InvalidURL: it holds one that is not a reference.
    """
    match = _USERINFO.search(url)
    if match is not None and not is_reference(match["password"]):
        msg = (
            f"the URL {redact(url)!r} holds a password, which Spark would show in plans and logs; "
            "put it into an environment variable of the workers and write a reference, as in 'env:NAME'"
        )
        raise InvalidURL(msg)


def holds_secret(name: str) -> bool:
    """Whether an option of this name is a secret itself: a reference is to be written where others see options."""
    return bool(_SECRET_OPTION.search(name))


def is_reference(value: str) -> bool:
    """Whether a value is a secret reference: `env:NAME` or `file:PATH`."""
    return value.startswith(("env:", "file:"))


def resolve_secret(value: str) -> str:
    """The value behind `env:NAME` or `file:PATH`; any other value as it is.

    Raises:
        ConfigurationError: the variable is not set, or the file cannot be read; never shows a value.
    """
    kind, _, name = value.partition(":")
    if kind == "env" and name:
        if name not in os.environ:
            msg = f"the secret reference 'env:{name}' names a variable that is not set on this machine"
            raise ConfigurationError(msg)
        return os.environ[name]
    if kind == "file" and name:
        try:
            return Path(name.removeprefix("//")).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            msg = f"the secret reference 'file:{name}' cannot be read on this machine: {type(error).__name__}"
            raise ConfigurationError(msg) from error
    return value


def resolve_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Options with every secret reference replaced by its value. Call it only where the client is made."""
    return {name: resolve_secret(value) for name, value in options.items()}


def redact(text: str) -> str:
    """Text with passwords in URLs and values of secret-looking names replaced."""
    text = _USERINFO.sub(_without_password, text)
    return _PAIR.sub(lambda match: match["name"] + match["sign"] + REDACTED, text)


def _without_password(found: re.Match[str]) -> str:
    """A reference is no secret, and a URL that was redacted is opened again."""
    password = found["password"] if _REFERENCE.fullmatch(found["password"]) else REDACTED
    return f"{found['scheme']}{found['user']}:{password}@"


def redact_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options as they may be logged or written: secret-looking names lose their value, URLs their password."""
    return {
        name: REDACTED if _SECRET_NAME.search(name) and not is_reference(value) else redact(value)
        for name, value in options.items()
    }


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name nearest to `name`, without regard to case; None where nothing is near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def unknown(what: str, name: str, known: Iterable[str]) -> UnknownOption:
    """The error for a name that nobody knows: says the nearest known one, or else lists them."""
    known = sorted(known)
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known are: {', '.join(known) or 'none'}"
    return UnknownOption(f"unknown {what} {name!r}; {hint}")
