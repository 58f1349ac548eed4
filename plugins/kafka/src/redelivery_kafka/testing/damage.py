"""A record that confluent-kafka's producer cannot write: one with a header whose name is not UTF-8.

Other clients may write such records (on the wire a name is bytes). librdkafka's C functions send it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

from redelivery_kafka.testing.librdkafka import librdkafka

_TEXT: Final = 512
_TOPIC, _VALUE, _HEADERS = 1, 4, 10


class _Value(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Union(ctypes.Union):
    _fields_ = (("text", ctypes.c_char_p), ("value", _Value), ("headers", ctypes.c_void_p), ("pad", ctypes.c_char * 64))


class _Part(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("u", _Union))


def send_damaged(settings: Mapping[str, str], topic: str) -> None:
    """Send one damaged record, and wait until it is stored."""
    found: Any = librdkafka()
    text = ctypes.create_string_buffer(_TEXT)
    conf = found.rd_kafka_conf_new()
    for name, value in settings.items():
        if found.rd_kafka_conf_set(conf, name.encode(), value.encode(), text, _TEXT):
            raise RuntimeError(text.value.decode())
    client = found.rd_kafka_new(0, conf, text, _TEXT)
    if not client:
        raise RuntimeError(text.value.decode())
    try:
        headers = found.rd_kafka_headers_new(1)
        name_bytes = b"\xff\xfe"
        found.rd_kafka_header_add(headers, name_bytes, len(name_bytes), b"v", 1)
        parts = (_Part * 3)()
        parts[0].kind, parts[0].u.text = _TOPIC, topic.encode()
        parts[1].kind, parts[1].u.value = _VALUE, _Value(b"damaged", len(b"damaged"))
        parts[2].kind, parts[2].u.headers = _HEADERS, headers
        if found.rd_kafka_produceva(client, parts, len(parts)):
            raise RuntimeError(f"the damaged record could not be produced to {topic}")
        if found.rd_kafka_flush(client, 10_000) or found.rd_kafka_outq_len(client):
            raise RuntimeError(f"the damaged record for {topic} was not delivered")
    finally:
        found.rd_kafka_destroy(client)
