"""What was removed of a stream is learnt from any point at which a reader may begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from pika.spec import BasicProperties

from redelivery.kit.offsets import Offsets
from redelivery_rabbitmq.client.removed_offsets import RemovedOffsets
from redelivery_rabbitmq.client.stream_reading import Entry, StreamReading


class Stream:
    """A stream in memory, as `StreamReading` shows it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def newest(self) -> Entry | None:
        return next(self.entries(len(self.bodies) - 1, None), None) if self.bodies else None

    def entries(self, low: int, high: int | None) -> Iterator[Entry]:
        for offset, body in enumerate(self.bodies[:high]):
            if offset >= low:
                yield Entry(offset, cast("Any", BasicProperties)(), body)


def known(stream: Stream, removed: RemovedOffsets | None = None) -> RemovedOffsets:
    removed = removed or RemovedOffsets()
    removed.update(cast("StreamReading", stream))
    return removed


def everything(removed: RemovedOffsets) -> set[int]:
    return {offset for offset in range(400) if offset in removed.offsets}


runs = st.tuples(st.integers(0, 300), st.integers(1, 5)).map(lambda each: (each[0], sum(each)))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), runs), max_size=200))
def test_processes_that_remove_side_by_side_add_up(steps: list[tuple[int, bool, tuple[int, int]]]) -> None:
    """Each step is a process that looks, or not, and then removes."""
    stream = Stream()
    processes = [RemovedOffsets() for _ in range(4)]
    gone: set[int] = set()
    for number, looks, run in steps:
        if looks:
            known(stream, processes[number])
        stream.bodies.append(processes[number].note([run]))
        gone.update(range(*run))
    assert everything(known(stream)) == gone
    for each in processes:
        assert everything(known(stream, each)) == gone


def test_a_reader_that_begins_late_reads_little() -> None:
    stream, removed = Stream(), RemovedOffsets()
    for offset in range(1_000):
        known(stream, removed)
        stream.bodies.append(removed.note([(2 * offset, 2 * offset + 1)]))
    read: list[int] = []

    class Watched(Stream):
        def entries(self, low: int, high: int | None) -> Iterator[Entry]:
            for entry in super().entries(low, high):
                read.append(entry.offset)
                yield entry

    watched = Watched()
    watched.bodies = stream.bodies
    assert known(watched).offsets.runs() == [(2 * at, 2 * at + 1) for at in range(1, 1_000)]
    assert len(read) < 200


def test_what_others_wrote_there_is_passed_over() -> None:
    stream = Stream()
    removed = RemovedOffsets()
    stream.bodies += [b"\xff", b"[]", b'{"removed": 1, "whole": true, "from": 0}', removed.note([(3, 5)]), b"null"]
    assert known(stream).offsets.runs() == [(3, 5)]
    stream.bodies.append(b'{"removed": [[5, 3]], "whole": false, "from": 99}')
    assert known(stream).offsets.runs() == [(3, 5)]


@given(st.lists(runs, max_size=60), st.integers(0, 310))
def test_a_set_of_offsets_is_what_was_added(added: list[tuple[int, int]], end: int) -> None:
    offsets, model = Offsets(), set[int]()
    for start, stop in added:
        new = set(range(start, stop)) - model
        assert offsets.add(start, stop) == len(new)
        model |= new
    assert {each for each in range(310) if each in offsets} == model
    assert offsets.missing(end) == len(set(range(end)) - model)
    assert offsets.any_between(end, end + 3) == bool({end, end + 1, end + 2} & model)
