"""The dead letters role: the letters in a folder, of both forms. It warns of other files and leaves them alone."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from redelivery.contract.broker import DeadLetters, Letter, LetterBatch, Wanted
from redelivery.contract.context import LAST_MS, ErrorContext, moment_ms
from redelivery.contract.letters import BATCH_BYTES, BATCH_LETTERS, EVERYTHING
from redelivery.contract.message import Batch, Column, Message
from redelivery.errors import ConfigurationError
from redelivery.kit.roles import Resource
from redelivery_file import codec
from redelivery_file.address import Address
from redelivery_file.client.folder import is_letter, millis_of, open_folder
from redelivery_file.client.lines import Lines, number_of_file, number_of_line
from redelivery_file.errors import TABLE

logger = logging.getLogger("redelivery.file")

#: A split has at least about so many files of one letter, or bytes of files of many.
_LEAST_FILES: Final = 10
_LEAST_BYTES: Final = 4_096
_CURSOR: Final = re.compile("[0-9]{1,20}")
_LINE: Final = re.compile(r"(letters-.*):([0-9]{1,12})")

#: The number of a letter, its position, and its content where that is read already.
_Entry = tuple[int, str, bytes | None]
#: The number of a letter, its position, its message and its context.
_Decoded = tuple[int, str, Message, ErrorContext]
#: Lines of a file between two offsets.
_Segment = tuple[str, int, int]


class FileDeadLetters(Resource, DeadLetters):
    """The letters in the folder of `address`."""

    def __init__(self, address: Address) -> None:
        super().__init__("file", address.place)
        self._folder = open_folder(address)
        self._known: dict[str, Lines] = {}

    def browse(self) -> Iterator[Letter]:
        self.check_open("browsing")
        with TABLE.while_doing(self.doing("reading")):
            for number, position, message, context in self._letters(self._entries(0, None), EVERYTHING):
                yield Letter(position=position, message=message, context=context, dead_lettered_ms=number)

    def splits(self, wanted: Wanted) -> Sequence[str]:
        self.check_open("dividing")
        after = 0 if wanted.after is None else _number(wanted.after)
        before = None if wanted.before is None else _number(wanted.before)
        sought = None if wanted.positions is None else {each.partition(":")[0] for each in wanted.positions}
        with TABLE.while_doing(self.doing("dividing")):
            listed = [name for name in self._folder.listed() if sought is None or name in sought]
            ours = filter(self._is_letter, listed)
            names = sorted(name for name in ours if _is_between(millis_of(name), after, before))
            segments = self._segments(filter(number_of_file, listed), after, before)
        few = max(1, min(wanted.readers, len(names) // _LEAST_FILES))
        groups = [names[len(names) * at // few : len(names) * (at + 1) // few] for at in range(few)]
        splits: list[Any] = [["files", group[0], group[-1]] for group in groups if group]
        splits += [["lines", *group] for group in self._groups(segments, wanted.readers)]
        return [json.dumps(each) for each in splits]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        self.check_open("reading")
        kind, parts = _parse(split)
        return _batches(self._read(kind, parts, wanted))

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        self.check_open("looking at")
        begin = 0 if after is None else _number(after)
        with TABLE.while_doing(self.doing("looking at")), self._folder.locked():
            end = self._folder.keep_cursor(max(begin, self._newest()))
            if most is not None:
                step = islice(self._entries(begin, end), max(0, most - 1), None)
                end = next(step, (end, "", None))[0]
        return str(end)

    def remove(self, positions: Sequence[str]) -> int:
        self.check_open("removing letters from")
        files: list[str] = []
        lines: dict[str, list[int]] = {}
        for position in positions:
            line = _LINE.fullmatch(position)
            if line is not None and number_of_file(line[1]) is not None:
                lines.setdefault(line[1], []).append(int(line[2]))
            elif is_letter(position):
                files.append(position)
            else:
                text = "it is a letter's file name, or that of its file and its place there"
                raise ConfigurationError(f"file: not a position in this folder: {position!r}; {text}")
        return self._remove(files, lines)

    def purge(self) -> int:
        self.check_open("removing letters from")
        with TABLE.while_doing(self.doing("reading")):
            many = dict.fromkeys(filter(number_of_file, self._folder.listed()))
        return self._remove(self._names(), many)

    def _release(self) -> None:
        self._folder.close()

    # --- which letters ---

    def _names(self) -> Iterator[str]:
        return filter(self._is_letter, self._folder.names())

    def _is_letter(self, name: str) -> bool:
        """Return whether a file is named as one letter; warn of one that is not ours."""
        if not is_letter(name):
            if number_of_file(name) is None:
                logger.warning("%s: left alone, it is not named as a letter", self._folder.path / name)
            return False
        return True

    def _entries(self, after: int, before: int | None) -> Iterator[_Entry]:
        """Yield the letters with numbers past `after`, up to `before`, that exist at the start, oldest first."""
        segments = self._segments(filter(number_of_file, self._folder.listed()), after, before)
        files: Iterator[_Entry] = (
            (millis_of(name), name, None) for name in self._names() if _is_between(millis_of(name), after, before)
        )
        streams = [self._stream(each) for each in segments]
        # The first entry of a stream stands for its file, so that no file is read before its time.
        return (each for each in merge(files, *streams, key=itemgetter(0)) if each[1])

    def _stream(self, segment: _Segment) -> Iterator[_Entry]:
        name = segment[0]
        yield number_of_file(name) or 0, "", None
        yield from self._lines(segment)

    def _lines(self, segment: _Segment) -> Iterator[_Entry]:
        """Yield the lines of a segment that are not removed."""
        name, start, end = segment
        lines = self._file(name)
        try:
            lines.removed.refresh()
            for at, line in lines.read(start, end):
                if at not in lines.removed.offsets:
                    yield number_of_line(line, lines.number), f"{name}:{at}", line
        except FileNotFoundError:
            return  # removed since
        except ValueError as error:
            logger.warning("%s: left alone: %s", self._folder.path / name, error)

    def _segments(self, names: Iterable[str], after: int, before: int | None) -> list[_Segment]:
        """Return what lines of these files have numbers past `after`, up to `before`; oldest files first."""
        found: list[_Segment] = []
        for name in sorted(names, key=lambda name: (number_of_file(name) or 0, name)):
            lines = self._file(name)
            try:
                end = 0 if before is not None and lines.number > before else lines.end()
                if before is not None and end:
                    end = lines.behind(before, end)
                start = lines.behind(after, end) if after >= lines.number else 0
            except FileNotFoundError:
                continue
            except ValueError as error:
                logger.warning("%s: left alone: %s", self._folder.path / name, error)
                continue
            if start < end:
                found.append((name, start, end))
        return found

    def _groups(self, segments: Sequence[_Segment], readers: int) -> Iterator[list[_Segment]]:
        """Return about as many groups of segments as there are readers, of about as many bytes each."""
        size = max(_LEAST_BYTES, -(-sum(end - start for _, start, end in segments) // readers))
        group: list[_Segment] = []
        room = size
        for name, begin, end in segments:
            start = begin
            while start < end:
                cut = end if end - start <= room else self._file(name).behind_line(start + room - 1, end)
                group.append((name, start, cut))
                room -= cut - start
                start = cut
                if room <= 0:
                    yield group
                    group, room = [], size
        if group:
            yield group

    def _newest(self) -> int:
        """Return the highest number of a letter; 0 where there is none."""
        newest = 0
        for name in self._folder.listed():
            if is_letter(name):
                newest = max(newest, millis_of(name))
            elif number_of_file(name) is not None:
                try:
                    newest = max(newest, self._file(name).last_number())
                except (FileNotFoundError, ValueError):
                    continue
        return newest

    def _file(self, name: str) -> Lines:
        return self._known.setdefault(name, Lines(self._folder, name))

    # --- reading ---

    def _read(self, kind: str, parts: Sequence[Any], wanted: Wanted) -> Iterator[_Decoded]:
        with TABLE.while_doing(self.doing("reading")):
            if kind == "lines":
                for segment in parts:
                    yield from self._letters(self._lines(segment), wanted)
            else:
                first, last = parts
                names = (name for name in self._folder.names() if first <= name <= last and is_letter(name))
                yield from self._letters(((millis_of(name), name, None) for name in names), wanted)

    def _letters(self, entries: Iterable[_Entry], wanted: Wanted) -> Iterator[_Decoded]:
        for number, position, data in entries:
            if _is_wanted(number, position, wanted):
                letter = self._letter(number, position, data)
                if letter is not None:
                    yield letter

    def _letter(self, number: int, position: str, data: bytes | None) -> _Decoded | None:
        """Return a letter; None if it was removed since, or is no letter."""
        try:
            if data is None:
                data = self._folder.read(position)
            message, context = codec.decode(data)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            logger.warning("%s: left out, it is torn or no letter of ours: %s", self._folder.path / position, error)
            return None
        return number, position, message, context

    # --- removing ---

    def _remove(self, files: Iterable[str], lines: Mapping[str, list[int] | None]) -> int:
        with TABLE.while_doing(self.doing("removing letters from")):
            count = sum(self._folder.remove(name) for name in files)
            for name, offsets in lines.items():
                with self._folder.locked():
                    try:
                        count += self._file(name).remove(offsets)
                    except ValueError as error:
                        logger.warning("%s: left alone: %s", self._folder.path / name, error)
            self._folder.sync()
        return count


def _batches(letters: Iterable[_Decoded]) -> Iterator[LetterBatch]:
    """Return letters as columns. `Letter` would check each context a second time."""
    some: list[_Decoded] = []
    weight = 0
    for letter in letters:
        some.append(letter)
        weight += letter[2].nbytes
        if len(some) >= BATCH_LETTERS or weight >= BATCH_BYTES:
            yield _batch(some)
            some, weight = [], 0
    if some:
        yield _batch(some)


def _batch(letters: Sequence[_Decoded]) -> LetterBatch:
    numbers, positions, messages, contexts = zip(*letters, strict=True)
    return LetterBatch(
        messages=Batch.of(messages),
        position=Column.of(list(positions)),
        dead_lettered_ms=Column.of(list(map(moment_ms, numbers))),
        contexts=dict(enumerate(contexts)),
    )


def _number(cursor: str) -> int:
    if _CURSOR.fullmatch(cursor) is None:
        raise ConfigurationError(f"file: not a cursor of a folder: {cursor!r}; it is a number")
    return int(cursor)


def _is_between(number: int, after: int, before: int | None) -> bool:
    return after < number and (before is None or number <= before)


def _is_wanted(number: int, position: str, wanted: Wanted) -> bool:
    if wanted.positions is not None and position not in wanted.positions:
        return False
    if wanted.since_ms is not None and number < wanted.since_ms:
        return False
    return wanted.until_ms is None or number < wanted.until_ms or number > LAST_MS


def _parse(split: str) -> tuple[str, Sequence[Any]]:
    """Read a split. Raises ConfigurationError."""
    try:
        match json.loads(split):
            case ["files", str() as first, str() as last]:
                return "files", (first, last)
            case ["lines", *segments] if all(map(_is_segment, segments)):
                return "lines", segments
    except (ValueError, RecursionError):
        pass
    raise ConfigurationError(f"file: not a split of a folder: {split!r:.200}")


def _is_segment(found: object) -> bool:
    match found:
        case [str() as name, int() as start, int() as end]:
            return number_of_file(name) is not None and 0 <= start <= end
    return False
