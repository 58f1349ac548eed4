"""The librdkafka inside confluent-kafka, loaded for ctypes, with its mock cluster: the only place that needs it."""

from __future__ import annotations

import ctypes
from typing import Any

import confluent_kafka.cimpl


def librdkafka() -> Any:
    """Load the library.

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
