"""Messages read from their frames are those that pika reads, however the bytes come."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.exceptions import BodyTooLongError, InvalidFrameError
from pika.frame import Body, Header, Heartbeat, Method
from pika.spec import Basic, BasicProperties, Channel, Queue

from redelivery_rabbitmq.client.deliveries import Deliveries
from redelivery_rabbitmq.client.pika_private import TappedConnection

OURS, OTHER = 1, 2
SHORT = st.text(max_size=20).map(lambda text: text.encode()[:60].decode(errors="ignore"))
PROPERTIES = st.builds(
    BasicProperties,
    delivery_mode=st.sampled_from((None, 1, 2)),
    message_id=st.none() | SHORT,
    content_type=st.none() | SHORT,
    headers=st.none() | st.dictionaries(SHORT, SHORT, max_size=2),
    timestamp=st.none() | st.integers(0, 1 << 40),
)
MESSAGE = st.tuples(st.booleans(), PROPERTIES, st.lists(st.binary(min_size=1, max_size=40), max_size=3))
OTHERS = st.sampled_from((Heartbeat(), Method(OTHER, Queue.DeclareOk("q", 1, 2)), Method(OURS, Channel.FlowOk(True))))


class Reading(TappedConnection):
    """What reads frames of a connection, without the connection."""

    def __init__(self) -> None:
        self.taps = {}
        self.rest = []
        self.woken = 0
        self._frame_buffer = b""
        self.bytes_received = self.frames_received = 0
        self.deliveries = Deliveries(OURS, "holder", 1_000, self.wake)
        self.taps[OURS] = self.deliveries.take

    is_closed = False

    def wake(self) -> None:
        self.woken += 1

    def _process_frame(self, frame_value) -> None:
        self.rest.append(frame_value)


def frames(tag, redelivered, properties, parts):
    deliver = Basic.Deliver("a consumer", tag, redelivered, "an exchange", "a key")
    header = Header(OURS, sum(map(len, parts)), properties)
    return [Method(OURS, deliver), header, *(Body(OURS, part) for part in parts)]


def read(data: bytes, cuts=()) -> Reading:
    reading = Reading()
    places = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(places):
        reading._on_data_available(data[begin:end])
    return reading


@given(st.data(), st.lists(st.tuples(MESSAGE, st.lists(OTHERS, max_size=2)), min_size=1, max_size=6))
def test_messages_are_what_pika_reads_wherever_the_bytes_are_cut(data, given_messages):
    pieces, others = [], []
    for tag, (message, behind) in enumerate(given_messages, 1):
        pieces += frames(tag, *message) + behind
        others += behind
    encoded = b"".join(frame.marshal() for frame in pieces)
    found = read(encoded, data.draw(st.lists(st.integers(0, len(encoded)), max_size=8)))
    assert [(each.tag, each.redelivered, each.body) for each in found.deliveries.received] == [
        (tag, redelivered, b"".join(parts)) for tag, ((redelivered, _, parts), _) in enumerate(given_messages, 1)
    ]
    for delivery, ((_, properties, _), _) in zip(found.deliveries.received, given_messages, strict=True):
        same = BasicProperties().decode(b"".join(properties.encode()))
        assert vars(delivery.properties) == vars(same)
        if delivery.decoded is None:
            assert delivery.plain_id == same.message_id
            assert (same.headers, same.content_type, same.timestamp) == (None, None, None)
    assert [type(each) for each in found.rest] == [type(each) for each in others]
    assert found.bytes_received == len(encoded)
    assert found.woken == 1


@pytest.mark.parametrize("raw", [b"\xff", b"\xc3"])
def test_an_id_that_is_not_utf8_stays_as_pika_has_it(raw):
    encoded = struct.pack(">HBB", BasicProperties.FLAG_DELIVERY_MODE | BasicProperties.FLAG_MESSAGE_ID, 2, 1) + raw
    header = Header(OURS, 0, BasicProperties())
    start = header.marshal()[7:19]
    frame = struct.pack(">BHI", 2, OURS, len(start) + len(encoded)) + start + encoded + b"\xce"
    (found,) = read(frames(1, False, BasicProperties(), [])[0].marshal() + frame).deliveries.received
    assert found.decoded.message_id == raw
    assert found.plain_id is None


def test_a_message_cut_off_by_another_method_is_dropped_and_the_next_one_is_whole():
    first = frames(1, False, BasicProperties(), [b"abc", b"def"])[:-1]
    second = frames(2, False, BasicProperties(), [b"gh"])
    pieces = [*first, Method(OURS, Channel.FlowOk(True)), *second]
    found = read(b"".join(frame.marshal() for frame in pieces))
    assert [(each.tag, each.body) for each in found.deliveries.received] == [(2, b"gh")]
    assert len(found.rest) == 1


def test_damaged_frames_end_the_connection_as_with_pika():
    method, header, body = (frame.marshal() for frame in frames(1, False, BasicProperties(), [b"abc"]))
    with pytest.raises(InvalidFrameError):
        read(method + header + body[:-1] + b"x")
    with pytest.raises(BodyTooLongError):
        read(method + header + Body(OURS, b"abcd").marshal())


def test_messages_of_other_channels_are_left_to_pika():
    method = Method(OTHER, Basic.Deliver("a consumer", 1, False, "", "key"))
    found = read(method.marshal() + Header(OTHER, 2, BasicProperties()).marshal() + Body(OTHER, b"ab").marshal())
    assert not found.deliveries.received
    assert len(found.rest) == 3
