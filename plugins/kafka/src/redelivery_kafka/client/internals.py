"""Everything that relies on confluent-kafka or librdkafka beyond their documented API: words, C functions, quirks.

A test fails on a version that is not in `TRIED`: try what is here with it, then add it.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any, Final

import confluent_kafka.cimpl

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


def librdkafka() -> Any:
    """Load the librdkafka of confluent-kafka for ctypes, with its mock cluster. Only test harnesses need it.

    Raises:
        OSError, AttributeError: this build of the client does not export it.
    """
    found = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("conf_new", pointer, ()),
        ("conf_set", ctypes.c_int, (pointer, text, text, text, ctypes.c_size_t)),
        ("new", pointer, (ctypes.c_int, pointer, text, ctypes.c_size_t)),
        ("destroy", None, (pointer,)),
        ("flush", ctypes.c_int, (pointer, ctypes.c_int)),
        ("outq_len", ctypes.c_int, (pointer,)),
        ("headers_new", pointer, (ctypes.c_size_t,)),
        ("header_add", ctypes.c_int, (pointer, text, ctypes.c_ssize_t, text, ctypes.c_ssize_t)),
        ("produceva", pointer, (pointer, pointer, ctypes.c_size_t)),
        ("mock_cluster_new", pointer, (pointer, ctypes.c_int)),
        ("mock_cluster_destroy", None, (pointer,)),
        ("mock_cluster_bootstraps", text, (pointer,)),
        ("mock_topic_create", ctypes.c_int, (pointer, text, ctypes.c_int, ctypes.c_int)),
        ("mock_topic_set_error", None, (pointer, text, ctypes.c_int)),
        ("mock_partition_set_leader", ctypes.c_int, (pointer, text, ctypes.c_int32, ctypes.c_int32)),
        (
            "mock_push_request_errors_array",
            None,
            (pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)),
        ),
        ("mock_clear_request_errors", None, (pointer, ctypes.c_int16)),
        ("mock_broker_set_down", ctypes.c_int, (pointer, ctypes.c_int32)),
        ("mock_broker_set_up", ctypes.c_int, (pointer, ctypes.c_int32)),
        ("mock_broker_set_rtt", ctypes.c_int, (pointer, ctypes.c_int32, ctypes.c_int)),
    ):
        function = getattr(found, f"rd_kafka_{name}")
        function.restype = result
        function.argtypes = arguments
    return found
