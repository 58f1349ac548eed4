"""A history survives the death of the processes that write it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from faults.history import Event, History, Recorder, Tail


def test_events_of_several_processes_are_merged_by_time(tmp_path: Path) -> None:
    one, other = Recorder(tmp_path, "one"), Recorder(tmp_path, "other")
    one.write("handed", rows=[1])
    other.write("settled", **{"rows": [1], "to": "destination", "as": "stored"})
    one.write("handed", rows=[2])
    history = History.load(tmp_path)
    assert [(event.who, event.kind, list(event.rows)) for event in history] == [
        ("one", "handed", [1]),
        ("other", "settled", [1]),
        ("one", "handed", [2]),
    ]
    history.save(tmp_path / "whole.jsonl")
    assert [Event.from_json(line) for line in (tmp_path / "whole.jsonl").read_text().splitlines()] == list(history)


def test_the_line_that_a_killed_process_left_incomplete_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "one")
    recorder.write("handed", rows=[1])
    with recorder.path.open("a") as file:
        file.write('{"t":1,"who":"one","ki')
    assert len(History.load(tmp_path)) == 1


def test_a_damaged_line_within_a_file_is_an_error(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "one")
    with recorder.path.open("a") as file:
        file.write("damaged\n")
    recorder.write("handed", rows=[1])
    with pytest.raises(ValueError, match="Expecting value"):
        History.load(tmp_path)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown kind of event: 'oops'"):
        Event.from_json('{"t":1,"who":"one","kind":"oops"}')


def test_threads_may_share_a_recorder(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "one")

    def write(first: int) -> None:
        for number in range(first, first + 200):
            recorder.write("handed", rows=[number])

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 200, 400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {row for event in History.load(tmp_path) for row in event.rows} == set(range(600))


def test_a_tail_counts_different_rows_while_they_are_written(tmp_path: Path) -> None:
    tail = Tail(tmp_path, "handed")
    assert tail.count() == 0
    recorder = Recorder(tmp_path, "one")
    recorder.write("handed", rows=[1, 2])
    recorder.write("attempt", rows=[3], to="destination")
    assert tail.count() == 2
    with recorder.path.open("a") as file:
        file.write('{"t":1,"who":"one","kind":"handed",')
        file.flush()
        assert tail.count() == 2
        file.write('"rows":[2,3]}\n')
    assert tail.count() == 3
