"""Another application's client: a program of its own with pika alone, that writes and reads fields as they are encoded.

It runs in a process of its own, because this plugin changes how pika reads field tables. It imports nothing of ours.
Standard input is one JSON object: `url` of the broker, `queue`, and `put`: a message, or nothing to read the queue.
Standard output is the messages read. Header fields and bodies are hexadecimal.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pika
import pika.data

#: Properties of a message, without its headers, and those that say how it is stored.
PROPERTIES = (
    "content_type",
    "content_encoding",
    "priority",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
)


class Field(bytes):
    """The value of a header as it is encoded, with its type."""


def install() -> None:
    """Let pika hand over values of field tables as they are encoded."""
    decode, encode = pika.data.decode_value, pika.data.encode_value

    def decoded(encoded: bytes, offset: int) -> tuple[Any, int]:
        end = offset + 9
        if encoded[offset : offset + 1] != b"T":  # pika raises for a time that no clock shows
            _, end = decode(encoded, offset)
        return Field(encoded[offset:end]), end

    def put(pieces: list[bytes], value: Any) -> int:
        if isinstance(value, Field):
            pieces.append(bytes(value))
            return len(value)
        return encode(pieces, value)

    pika.data.decode_value = decoded
    pika.data.encode_value = put


def main() -> None:
    """Do what standard input says."""
    asked = json.load(sys.stdin)
    connection = pika.BlockingConnection(pika.URLParameters(asked["url"]))
    install()
    channel, queue = connection.channel(), asked["queue"]
    found = []
    if asked.get("put"):
        given = asked["put"]
        headers = {name: Field(bytes.fromhex(value)) for name, value in given["headers"].items()}
        properties = pika.BasicProperties(headers=headers, **given["properties"])  # type: ignore[no-untyped-call]
        channel.confirm_delivery()
        channel.basic_publish("", queue, bytes.fromhex(given["body"]), properties, mandatory=True)
        if asked.get("reject"):
            method = None
            while method is None:
                method, _, _ = channel.basic_get(queue)
            channel.basic_reject(method.delivery_tag, requeue=False)
    else:
        while (read := (got := channel.basic_get(queue))[1]) is not None:
            found.append(
                {
                    "headers": {name: bytes(value).hex() for name, value in (read.headers or {}).items()},
                    "properties": {name: value for name in PROPERTIES if (value := getattr(read, name)) is not None},
                    "body": (got[2] or b"").hex(),
                }
            )
    json.dump(found, sys.stdout)
    connection.close()


if __name__ == "__main__":
    main()
