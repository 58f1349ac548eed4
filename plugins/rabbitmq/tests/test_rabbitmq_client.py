"""The private parts of pika that the plugin uses: all in one module, and tried with the version at hand."""

import ast
import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pika
import pytest
from pika import data
from pika.adapters.base_connection import BaseConnection
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.io_services_utils import _AsyncTransportBase
from pika.heartbeat import HeartbeatChecker

import redelivery_rabbitmq
from redelivery_rabbitmq.client import connection, field_tables, pika_private

SOURCES = Path(redelivery_rabbitmq.__file__).parent
PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_the_suite_has_passed_with_this_version_of_pika():
    """Run the tests and the conformance suite with it, then add it to `TRIED`."""
    assert version("pika") in pika_private.TRIED


def test_no_version_is_allowed_that_is_older_or_newer_than_those_tried():
    """pika 1.3 reads negative numbers in headers as large positive ones."""
    requirements = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    (bounds,) = (found for each in requirements if (found := re.fullmatch(r"pika>=(\d+)\.(\d+),<(\d+)\.(\d+)", each)))
    lowest_major, lowest_minor, major, minor = map(int, bounds.groups())
    tried = sorted(tuple(map(int, each.split("."))) for each in pika_private.TRIED)
    assert tried[0] == (lowest_major, lowest_minor, 0)
    assert (tried[-1][0], tried[-1][1] + 1) == (major, minor)


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (pika.SelectConnection, ("_output_marshaled_frames", "_terminate_stream", "_get_write_buffer_size")),
        (pika.SelectConnection, ("_on_data_available", "_proto_data_received")),
        (BlockingConnection, ("_request_channel_dispatch",)),
        (IOLoop, ("activate_poller", "poll", "process_timeouts", "call_later", "remove_timeout", "deactivate_poller")),
        (pika.channel.Channel, ("_send_method",)),
        (data, ("decode_value", "encode_value")),
    ],
)
def test_pika_still_has_the_private_functions(owner, names):
    assert [name for name in names if not callable(getattr(owner, name, None))] == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (BlockingConnection, "_impl"),
        (BlockingChannel, "_impl"),
        (pika.connection.Connection, "_frame_buffer"),
        (BaseConnection, "_transport"),
        (BaseConnection, "_on_data_available"),
        (_AsyncTransportBase, "_MAX_RECV_BYTES"),
        (pika.connection.Connection, "_heartbeat_checker"),
        (HeartbeatChecker, "_heartbeat_frames_received"),
    ],
)
def test_pika_still_has_the_private_attributes(owner, name):
    functions = [each for each in vars(owner).values() if inspect.isfunction(each)]
    assert any(name in each.__code__.co_names for each in functions)


def test_pika_reads_and_writes_fields_with_our_functions():
    assert connection.CLOSE_TIMEOUT  # importing it put them there
    assert (data.decode_value, data.encode_value) == (field_tables.decode_value, field_tables.encode_value)
    pieces: list[bytes] = []
    data.encode_table(pieces, {"half": 0.5})
    assert data.decode_table(b"".join(pieces), 0)[0] == {"half": 0.5}


def test_private_parts_of_pika_are_used_in_one_module_only():
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_private = isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr) is not None
            if is_private and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "address"}):
                found.add(path.name)
    assert found == {"pika_private.py", "reading.py"}  # the latter reads what is stored without the plugin's code
