"""Groups of letters: those of one cause have one fingerprint, whatever numbers, ids and times their messages name.

A fingerprint is the same in every process and every version: parked groups and alerts are kept by it. So nothing here
may depend on what a process knows (its secrets), on its settings, or on the Unicode tables of its Python; golden
vectors in the tests hold it. All functions take time linear in their text, which may be hostile.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from redelivery.base.secrets import redact, redact_alike
from redelivery.base.urls import quoted
from redelivery.contract.context import ErrorContext, sound
from redelivery.contract.letters import LetterBatch
from redelivery.deadletters.trust import contexts_of
from redelivery.errors import ConfigurationError

#: Stands for what varies between letters of one cause.
VARIES: Final = "<*>"
#: Characters of a message that are looked at, and the most that are kept of what becomes of it.
LOOKED_AT: Final = 4096
KEPT: Final = 400
#: Hexadecimal digits of a fingerprint.
DIGITS: Final = 12
#: The fields of a context that a fingerprint depends on.
FIELDS: Final = ("code", "kind", "native_code", "exception", "destination", "source_topic", "reason")
#: Fingerprints that are kept, so that letters of one cause are computed once.
_REMEMBERED: Final = 2048

# --- what varies ----------------------------------------------------------------------------------------------------

_WORD: Final = "A-Za-z0-9_\x80-\U0010ffff"
_MONTHS: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAYS: Final = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
#: What precedes a quoted name that is part of the cause: a column that is missing is another cause than another column.
_NOUNS: Final = (
    "column|columns|field|relation|table|constraint|property|attribute|parameter|argument|type|class|option|function|"
    "method|member|KeyError:|AttributeError:|(?<=for )key"
)
#: What precedes a number that is part of the cause.
_NUMBERED: Final = (
    r"errno|error|err|code|status|http|sqlstate|sqlcode|exit|signal|response|returned|hresult|val|"
    r"(?:status|error|response|reply|return|exit|http)[ _-]?code"
)
#: Keys of a JSON value that is part of the cause.
_TELLING: Final = "type|__type|code|error|errorCode|error_code|status|reason|title|exception"

_TOKEN: Final = re.compile(
    "|".join(
        (
            # words before other words, all at once: they are most of a message
            rf"(?P<plain>(?:(?!(?:{_DAYS})\b|[a-f]{{8}}|[A-F]{{8}})[A-Za-z]{{1,24}}+[,;:)]?\x20(?=[A-Za-z]))++)",
            # a key of JSON with a value that tells the cause, or alone
            (
                rf'(?P<told>(?:(?<=[{{,])|(?<=[{{,] ))"(?:{_TELLING})"\s?:\s?(?:"[A-Za-z][A-Za-z_.:-]{{0,80}}"|'
                r"[0-9]{1,5}(?=[,}\]\s])))"
            ),
            # a body that is quoted within a message
            r"(?P<source>\[Source: [^\n]*?(?:; line: [0-9]++, column: [0-9]++\]|\Z))",
            r"(?P<body>[\"'][\[{](?:[^}\]]|[}\]](?![\"']))*+(?:[}\]][\"']|\Z))",
            r'(?P<key>(?:(?<=[{,])|(?<=[{,] ))"[A-Za-z_][A-Za-z_.-]{0,60}"\s?:)',
            # a quoted name behind a noun
            rf"(?P<named>\b(?:{_NOUNS})\s[\"'`][A-Za-z_][A-Za-z_.$-]{{0,80}}[\"'`])",
            # a member that is named in brackets, and a method
            r"(?P<member>(?<=[A-Za-z0-9_)\]]\[)[\"'][A-Za-z_][A-Za-z_.-]{0,60}[\"'](?=\]))",
            r"(?P<method>[\"'`](?:[A-Za-z_$]++\.)+[A-Za-z_$<>]++\([A-Za-z_$., \[\]]{0,200}\)[\"'`])",
            # the text that a client quotes: only its quotation mark is passed over
            (
                r"(?P<sentence>(?:str=|text=|reason=|message=|\([0-9]{3,5}, |(?<=Error\()|(?<=Exception\()|"
                r"(?<=Timeout\()|^)"
                r"[\"'](?=[A-Za-z<]))"
            ),
            r"(?P<constant>[\"'](?=[A-Z][A-Z0-9]{2,40}_[A-Z0-9_]{2,40} - ))",
            # quoted values; an apostrophe within a word is not a quote. A quote that is not closed reaches to the end.
            (
                rf"(?P<quoted>(?<![{_WORD}\"'])(?:'[^']*+(?:'|\Z)|\"(?:[^\"\\]|\\.)*+(?:\"|\Z)|`[^`]*+(?:`|\Z))"
                "|\u201c[^\u201c\u201d]*+(?:\u201d|\\Z)|\u00ab[^\u00ab\u00bb]*+(?:\u00bb|\\Z))"
            ),
            r"(?P<value>(?:\)=|\bcontains )\([^)]*+\))",
            # numbers that are part of the cause
            rf"(?P<number>\b(?i:{_NUMBERED})(?: ?[:=#(\[] ?| code:? | )[0-9]{{1,5}}\b(?![.:/-]?[0-9A-Za-z]))",
            r"(?P<coded>\b(?:ORA|SQL|TNS|DB2)-?[0-9]{4,5}\b|\b[1-5][0-9]{2} (?=(?:Client|Server) Error))",
            r"(?P<errno>\[Errno -?[0-9]{1,5}\])",
            # a URL: its host and its query vary
            r"(?P<url>[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s\"'<>()\[\]{},;]++(?:\[[0-9A-Fa-f:.]{2,45}\][^\s\"'<>(){},;]*+)?)",
            r"(?P<arn>\barn:[a-z-]{1,12}:[a-z0-9-]{1,30}:[^\s\"'<>(),;]*+)",
            r"(?P<mail>[A-Za-z0-9._%+-]{1,64}+@[A-Za-z0-9-]++(?:\.[A-Za-z0-9-]++)++)",
            r"(?P<hash>@[0-9a-f]{4,16}\b)",
            r"(?P<ipv6>\[[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{1,45}\](?::[0-9]{1,5})?)",
            # words with all that joins them: hosts, paths, ids, numbers
            rf"(?P<token>[{_WORD}/\\~][{_WORD}.:/\\~@$%#=+-]*+)",
        )
    ),
    re.ASCII,
)
_SPACE: Final = re.compile("[\x00-\x20\x7f\x85\xa0\u2028\u2029]+")
_HAS_DIGIT: Final = re.compile("[0-9]")
#: A part of a token between its joints.
_PART: Final = re.compile("[A-Za-z0-9\x80-\U0010ffff]++")
_HEX_WORD: Final = re.compile("[a-f]{8,}|[A-F]{8,}")
_BLOB: Final = re.compile("[A-Za-z0-9+/_=-]{20,}")
_SMALL: Final = re.compile("[a-z]{4,}")
_UUID: Final = re.compile("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_LONGEST_PART: Final = 60
#: A host with its port, and a host by its name.
_PORT: Final = re.compile(
    r"(?<![A-Za-z0-9._-])(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*+):(?P<port>[0-9]{2,5})(?![0-9]|-[0-9])"
)
_TLD: Final = re.compile(
    r"(?:[A-Za-z0-9-]{1,63}+\.){2,}+(?:com|net|org|io|local|internal|cloud|dev|svc|lan|corp|test|cluster|aws|de|eu|uk|us)"
    r"\.?"
)
_SOURCE: Final = re.compile(r"\.(?:java|kt|scala|py|js|ts|go|rs|rb|cs|cpp|c|h|php|ex|clj|groovy)$")
#: Folders whose next name is a user's, or made up.
_OWNED: Final = re.compile(r"(?P<folder>(?:/|\\)(?:home|Users|tmp|temp|Temp|var/folders)[/\\])[^/\\ ]++")
#: Names of days, months and zones beside what varies.
_DATE: Final = re.compile(rf"(?:\b(?:{_DAYS}|{_MONTHS})[a-z]{{0,6}},?[ -]){{1,2}}(?=<\*>)", re.ASCII)
_ZONE: Final = re.compile(r"(?<=<\*>) (?:AM|PM|GMT|UTC|CES?T|[ECMP][SD]T)\b", re.ASCII)
_RUN: Final = re.compile(r"<\*>(?:[-_.:,;/+|TZ =]{0,2}+<\*>)++(?:Z\b)?")
_SIGNED: Final = re.compile(r"(?<![A-Za-z0-9>)\]])[-+]<\*>")
_UNITS: Final = re.compile(
    r"<\*> ?(?:(?P<unit>attempt|second|minute|hour|day|byte|row|record|message|character|char|time|millisecond|retr)"
    r"(?:s|y|ies)?|ms|us|ns|s|sec|secs|min|mins|h|[KMGT]i?B|B|kB|%)(?![A-Za-z])"
)


def normalised(message: str) -> str:
    """Return a message with all that varies between letters of one cause replaced by `<*>`, on one line.

    Numbers, ids, hexadecimal and base64 texts, times, quoted values, hosts, ports, addresses and the varying parts of
    paths are replaced. Kept are numbers that name an error (`HTTP 503`, `[Errno 111]`), and names of columns and the
    like. Secrets that the text reveals are redacted.

    Args:
        message: any text; only its first `LOOKED_AT` characters count.

    Returns:
        At most `KEPT` characters.
    """
    text = _SPACE.sub(" ", redact_alike(message[:LOOKED_AT])).strip(" ")
    text = _TOKEN.sub(_replaced, text)
    text = _RUN.sub(VARIES, _ZONE.sub("", _DATE.sub("", text)))
    text = _SIGNED.sub(VARIES, text)
    return _UNITS.sub(_unit, text)[:KEPT]


def _replaced(match: re.Match[str]) -> str:
    kind, text = match.lastgroup or "", match[0]
    if kind in _AS_IS:
        return text
    return _REPLACE.get(kind, _varies)(text)


def _varies(_: str) -> str:
    return VARIES


def _url(text: str) -> str:
    scheme, _, rest = text.partition("://")
    path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")[2]
    return f"{scheme}://{VARIES}" + (f"/{_token(path)}" if path else "")


def _arn(text: str) -> str:
    return ":".join((*text.split(":", 3)[:3], VARIES))


def _value(text: str) -> str:
    return f"{text[: text.index('(')]}({VARIES})"


def _unit(match: re.Match[str]) -> str:
    return f"{VARIES} {match['unit']}s" if match["unit"] else VARIES


def _token(text: str) -> str:
    """Return a word with all that joins it: only its parts that vary are replaced."""
    if text[0] in "/\\" or ":\\" in text:
        text = _OWNED.sub(rf"\g<folder>{VARIES}", text)
    end = text.rstrip(".:/-")
    if _TLD.fullmatch(end):
        return VARIES + text[len(end) :]
    if len(text) >= _BLOB_LENGTH and _is_blob(end):
        return VARIES + text[len(end) :]
    if _HAS_DIGIT.search(text) is None:
        return _PART.sub(_letters, text)
    text = _PORT.sub(_port, _UUID.sub(VARIES, text))
    return _PART.sub(_part, text)


def _port(match: re.Match[str]) -> str:
    """Return a host with its port; a line number of a source file is not a port."""
    name, port = match["name"], match["port"]
    is_host = "." in name or len(port) >= _PORT_DIGITS or name == "localhost"
    if not is_host or _SOURCE.search(name):
        return match[0]
    return VARIES


def _letters(match: re.Match[str]) -> str:
    return VARIES if len(match[0]) > _LONGEST_PART or _HEX_WORD.fullmatch(match[0]) else match[0]


def _part(match: re.Match[str]) -> str:
    return VARIES if _HAS_DIGIT.search(match[0]) else _letters(match)


def _is_blob(text: str) -> bool:
    """Whether a text looks like base64: capitals among small letters, more than in any name."""
    if _BLOB.fullmatch(text) is None or any(_SMALL.fullmatch(each) for each in text.split("/")):
        return False  # or a path
    capitals = sum("A" <= each <= "Z" for each in text)
    small = sum("a" <= each <= "z" for each in text)
    digits = sum("0" <= each <= "9" for each in text)
    share = capitals / max(1, capitals + small)
    return _LEAST_CAPITALS <= share <= _MOST_CAPITALS and (digits > 0 or len(text) >= _BLOB_OF_LETTERS)


_BLOB_LENGTH: Final = 20
_BLOB_OF_LETTERS: Final = 28
_LEAST_CAPITALS: Final = 0.25
_MOST_CAPITALS: Final = 0.75
_PORT_DIGITS: Final = 4
_AS_IS: Final = frozenset(
    {"plain", "told", "key", "named", "member", "method", "sentence", "constant", "number", "coded", "errno"}
)
_REPLACE: Final[Mapping[str, Callable[[str], str]]] = {"url": _url, "arn": _arn, "value": _value, "token": _token}

# --- fingerprints ---------------------------------------------------------------------------------------------------


class Cause(NamedTuple):
    """What letters of one group have in common: the fields of a context in `FIELDS`, normalised.

    Attributes:
        code: of the closed list; "" where unknown.
        kind: error class.
        native_code: the client's own word; "" where unknown.
        exception: class of the exception; "" where unknown.
        destination: URL, or the queue where the message was read; redacted.
        message: normalised.
    """

    code: str
    kind: str
    native_code: str
    exception: str
    destination: str
    message: str

    @property
    def fingerprint(self) -> str:
        """12 hexadecimal digits."""
        parts = (part.encode("utf-8", "surrogatepass") for part in self)
        data = b"".join(b"%d:%b" % (len(part), part) for part in parts)
        return hashlib.blake2b(data, digest_size=DIGITS // 2).hexdigest()

    def shown(self) -> Cause:
        """Return it for people: without secrets that only this process knows."""
        return Cause(*map(redact, self))


def fingerprint(context: ErrorContext) -> str:
    """Return the fingerprint of a letter with this whole context (`trust.context_of`): 12 hexadecimal digits."""
    return cause(context).fingerprint


def cause(context: ErrorContext) -> Cause:
    """Return what a letter has in common with the others of its group."""
    context = sound(context)
    return _known(tuple(_cut(getattr(context, name)) for name in FIELDS))[1]


def fingerprints(letters: LetterBatch) -> list[str]:
    """Return the fingerprint of each letter. Equal contexts are looked at once."""
    columns = contexts_of(letters, FIELDS)
    said = list(zip(*(columns[name] for name in FIELDS), strict=True))
    found = {each: known(each)[0] for each in set(said)}
    return [found[each] for each in said]


def known(said: tuple[str | None, ...]) -> tuple[str, Cause]:
    """Return fingerprint and cause of contexts with these values of `FIELDS`, as `trust.contexts_of` returns them."""
    values = dict(zip(FIELDS, said, strict=True))
    if values["code"] is None and values["kind"]:
        context = sound(ErrorContext(**values))  # type: ignore[arg-type]  # texts, as FIELDS are
        said = tuple(getattr(context, name) for name in FIELDS)
    return _known(tuple(map(_cut, said)))


@lru_cache(maxsize=_REMEMBERED)
def _known(said: tuple[str, ...]) -> tuple[str, Cause]:
    code, kind, native_code, exception, destination, source, reason = said
    place = redact_alike(destination or source)
    found = Cause(code, kind, native_code, _message(exception), place, _message(reason))
    return found.fingerprint, found


def _cut(text: str | None) -> str:
    """Return what counts of a text: anyone may have written it, and it is kept."""
    return (text or "")[:LOOKED_AT]


#: Equal messages come with many contexts.
_message: Final = lru_cache(maxsize=_REMEMBERED)(normalised)


def check_fingerprint(text: str) -> str:
    """Return a text that has the form of a fingerprint. Raises ConfigurationError."""
    if re.fullmatch(f"[0-9a-f]{{{DIGITS}}}", text) is None:
        hint = "`redelivery dead-letters stats --by fingerprint` lists the groups"
        raise ConfigurationError(
            f"{quoted(redact(text))} is not a fingerprint, which has 12 hexadecimal digits; {hint}"
        )
    return text
