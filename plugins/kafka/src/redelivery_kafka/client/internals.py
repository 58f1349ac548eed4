"""Everything that relies on confluent-kafka or librdkafka beyond their documented API: texts, and a C function.

A test fails on a version that is not in `TRIED`: try with it what is here and in `testing.librdkafka`, then add it.
"""

from __future__ import annotations

import ctypes
import re
from typing import Final

#: Versions of confluent-kafka, and of the librdkafka that it brings, with which all of this was tried.
TRIED: Final = frozenset({("2.16.1", "2.16.0")})

#: Given as the last setting of a client, so that librdkafka refuses it after it has checked those before: no client is
#: created.
INVALID_SETTING: Final = "redelivery.probe"
_UNKNOWN_SETTING: Final = re.compile(r'No such configuration property: "(?P<name>[^"]*)"')
#: An authentication that has not begun, in the words of the library that fetches tokens: no server has refused it.
_TOKEN_ENDPOINT_UNREACHED: Final = re.compile(
    r"token: (Failed to connect|Could(n't| not) (connect|resolve)|(Resolving|Connection|Operation) timed out|"
    r"Connection was reset|Empty reply|Recv failure|Send failure)"
)

#: Called through ctypes, it makes Python raise the error that a C function has left behind.
raise_pending_error: Final = ctypes.pythonapi.PyErr_Occurred
raise_pending_error.restype = ctypes.c_void_p
raise_pending_error.argtypes = ()


def unknown_setting(text: str) -> str | None:
    """Return the name of the setting that librdkafka does not know, from the text of its error."""
    match = _UNKNOWN_SETTING.search(text)
    return match["name"] if match else None


def is_token_endpoint_unreached(text: str) -> bool:
    """Return whether an authentication error says that the token endpoint was not reached."""
    return _TOKEN_ENDPOINT_UNREACHED.search(text) is not None


def is_failed_connect(text: str) -> bool:
    """Return whether a connection error is of a connection that was never established, so nothing was sent on it."""
    return "in state CONNECT" in text
