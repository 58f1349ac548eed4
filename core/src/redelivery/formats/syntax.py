"""Whether text is a URI reference, a URI (RFC 3986) or a media type (RFC 2046, written as RFC 2045 says).

Each check reads the text once, whatever it holds.
"""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = r"-A-Za-z0-9._~!$&'()*+,;="
_ESCAPE: Final = "%[0-9A-Fa-f]{2}"
_SEGMENTS: Final = rf"(?:[{_PLAIN}:@/]|{_ESCAPE})*+"
_HOST: Final = rf"(?:\[[{_PLAIN}:]++\]|(?:[{_PLAIN}]|{_ESCAPE})*+)"
_AUTHORITY: Final = rf"(?:(?:[{_PLAIN}:]|{_ESCAPE})*+@)?{_HOST}(?::[0-9]*+)?"
_REST: Final = rf"(?:\?(?:[{_PLAIN}:@/?]|{_ESCAPE})*+)?(?:#(?:[{_PLAIN}:@/?]|{_ESCAPE})*+)?"
_PLACE: Final = rf"(?://{_AUTHORITY}(?:/{_SEGMENTS})?|(?!//){_SEGMENTS}){_REST}"
_SCHEME: Final = "[A-Za-z][A-Za-z0-9+.-]*+:"
_URI: Final = re.compile(_SCHEME + _PLACE)
#: Before its first slash a relative reference has no colon: text before a colon is a scheme.
_RELATIVE: Final = re.compile(rf"(?![^/?#:]*+:){_PLACE}")
_WORD: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~{}-]++"
_QUOTED: Final = r'"(?:[^"\\\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])*+"'
_PARAMETER: Final = rf"{_WORD}[ \t]*+=[ \t]*+(?:{_WORD}|{_QUOTED})"
_MEDIA_TYPE: Final = re.compile(rf"{_WORD}/{_WORD}(?:[ \t]*+;[ \t]*+(?:{_PARAMETER})?)*+[ \t]*+")


def is_uri(text: str) -> bool:
    """Whether text is a URI: it begins with a scheme. A fragment is allowed, as schemas are named with one."""
    return _URI.fullmatch(text) is not None


def is_uri_reference(text: str) -> bool:
    """Whether text is a URI, or a reference relative to one."""
    return is_uri(text) or _RELATIVE.fullmatch(text) is not None


def is_media_type(text: str) -> bool:
    """Whether text is a media type, with or without parameters."""
    return _MEDIA_TYPE.fullmatch(text) is not None
