"""Files of many letters: JSON Lines, `letters-<number>-<random>.jsonl`, each written by one writer.

A writer appends a batch with one write under the folder's lock, and fsyncs it. It never appends to another's file, so a
line that a killed writer left torn stays the last one, and is no letter. It holds a lock on its file while it is open:
nobody deletes it meanwhile. The lines of a batch share a number, their time; numbers rise in each file.

Removed letters are listed in a hidden file beside theirs (`.<name>.removed`: offsets of lines, appended and fsynced).
A file whose letters are all removed is deleted, and its list after it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redelivery_file.client.folder import Folder
    from redelivery_file.options import Settings

#: Maximum size of a line, and of a file that is read, in bytes. No writer of ours makes larger ones.
MOST_BYTES: Final = 1 << 28
MOST_FILE: Final = 1 << 32
_CHUNK: Final = 1 << 20
_FILE: Final = re.compile(r"letters-([0-9]{1,20})-[0-9a-f]{16}\.jsonl")
_NUMBER: Final = re.compile(rb'\{"time": ?([0-9]{1,20}),')
_REMOVED: Final = re.compile(rb"([0-9]{1,12});")
#: Bytes in which a line's number is looked for.
_HEAD: Final = 64

logger = logging.getLogger("redelivery.file")


def number_of_file(name: str) -> int | None:
    """Return the number, at least 1, in the name of a file of many letters; None for any other name."""
    found = _FILE.fullmatch(name)
    return None if found is None else int(found[1]) or None


def number_of_line(line: bytes, otherwise: int) -> int:
    """Return the number of a line."""
    found = _NUMBER.match(line[:_HEAD])
    return otherwise if found is None else int(found[1])


class LinesWriter:
    """Appends letters to its own file; begins another when that is large, full or old. Every method raises OSError."""

    def __init__(self, folder: Folder, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._fd = -1
        self._name = ""
        self._count = self._size = 0
        self._born = 0.0
        self._is_new = False

    def write(self, letters: Sequence[bytes], wait: float) -> None:
        """Append letters, all or none; they survive a crash once `sync` has returned.

        Args:
            letters: JSON objects, each on its line.
            wait: how long to wait for the folder's lock, in seconds.
        """
        with self._folder.locked(wait):
            number = self._folder.next_number()
            if not self._has_room():
                self._end()
                self._open(number)
            head = b'{"time": %d, ' % number
            data = b"".join([head + letter[1:] for letter in letters])
            try:
                _write(self._fd, data)
            except OSError:
                self._take_back()
                raise
            self._size += len(data)
            self._count += len(letters)

    def sync(self) -> None:
        """Make what was written survive a crash. Raises FileNotFoundError where somebody has deleted the file."""
        try:
            os.fsync(self._fd)
            if self._is_new:
                self._folder.sync()
                self._is_new = False
            if os.fstat(self._fd).st_nlink == 0:
                raise FileNotFoundError(2, "the file was deleted while letters were written into it", self._name)
        except OSError:
            self._abandon()
            raise

    def close(self) -> None:
        """Finish the file; delete it if all its letters were removed meanwhile."""
        if self._fd >= 0:
            with self._folder.locked():
                self._end()

    def _end(self) -> None:
        """Finish the file. The folder must be locked."""
        if self._fd >= 0:
            self._abandon()
            Lines(self._folder, self._name).delete_if_removed()

    def _take_back(self) -> None:
        """Take back the torn batch, and end the file.

        Its first lines may have been read, to be removed later: no other letters may ever be in their place.
        """
        with contextlib.suppress(OSError):
            if self._size:
                os.ftruncate(self._fd, self._size)
            else:
                os.unlink(self._name, dir_fd=self._folder.fd)
        self._end()

    def _abandon(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _has_room(self) -> bool:
        limits = self._settings
        return (
            self._fd >= 0
            and self._size < limits.rotate_bytes
            and self._count < limits.rotate_letters
            and time.monotonic() - self._born < limits.rotate_seconds
            and self._is_in_place()
        )

    def _is_in_place(self) -> bool:
        """Return whether the file still has its name: somebody may have moved or deleted it."""
        try:
            found = os.stat(self._name, dir_fd=self._folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._fd))

    def _open(self, number: int) -> None:
        name = f"letters-{number:013d}-{secrets.token_hex(8)}.jsonl"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._folder.fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._fd, self._name, self._born, self._is_new = fd, name, time.monotonic(), True
        self._count = self._size = 0


class Lines:
    """One file of many letters, to read and remove from. Every method raises OSError.

    Raises:
        ValueError: it is not a regular file, or is too large. A symbolic link is never followed.
        FileNotFoundError: it is gone.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self.name = name
        self.number = number_of_file(name) or 0
        self.removed = Removed(folder, name)

    def end(self) -> int:
        """Return where its last whole line ends: what follows is being written, or torn."""
        with self._opened() as fd:
            at = os.fstat(fd).st_size
            while at > 0:
                begin = max(0, at - _CHUNK)
                found = os.pread(fd, at - begin, begin).rfind(b"\n")
                if found >= 0:
                    return begin + found + 1
                at = begin
        return 0

    def read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield offset and content of each line between two offsets, removed ones too, with bounded memory."""
        rest, at = b"", start
        while at + len(rest) < end:
            with self._opened() as fd:  # not held open: many may be read at once
                data = os.pread(fd, min(max(_CHUNK, len(rest)), end - at - len(rest)), at + len(rest))
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield at, line
                at += len(line) + 1
            if len(rest) > MOST_BYTES:
                logger.warning(
                    "%s: a line of more than %d bytes is left out", self._folder.path / self.name, MOST_BYTES
                )
                at, rest = self.behind_line(at + len(rest), end), b""

    def count(self, end: int) -> int:
        """Return how many lines end before an offset."""
        count = at = 0
        with self._opened() as fd:
            while at < end:
                data = os.pread(fd, min(_CHUNK, end - at), at)
                if not data:
                    break
                count += data.count(b"\n")
                at += len(data)
        return count

    def behind(self, number: int, end: int) -> int:
        """Return where the first line with a higher number begins, of those that end before an offset."""
        low, high = 0, end
        while high - low > _CHUNK:
            middle = self.behind_line((low + high) // 2, high)
            if middle >= high or self._number_at(middle) > number:
                high = (low + high) // 2
            else:
                low = middle
        for at, line in self.read(low, end):
            if number_of_line(line, self.number) > number:
                return at
        return end

    def last_number(self) -> int:
        """Return the number of its last line."""
        end = self.end()
        return max(
            (number_of_line(line, self.number) for _, line in self.read(self._last(end), end)), default=self.number
        )

    def remove(self, offsets: Iterable[int] | None) -> int:
        """Remove the lines at these offsets (None: all); return how many existed. The folder must be locked.

        It is deleted when all its lines are removed and its writer has ended.
        """
        try:
            end = self.end()
            self.removed.refresh()
            found = self._starts(offsets, end)
        except FileNotFoundError:
            return 0
        gone = [each for each in found if each not in self.removed.offsets]
        if gone:
            is_last = len(gone) + len(self.removed.offsets) >= self.count(end)
            if not (is_last and self._delete()):
                self.removed.append(gone)
        return len(gone)

    def delete_if_removed(self) -> None:
        """Delete it if all its lines are removed. The folder must be locked."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            end = self.end()
            self.removed.refresh()
            if self.removed.offsets and len(self.removed.offsets) >= self.count(end):
                self._delete()

    def _delete(self) -> bool:
        """Delete the file and its list, unless its writer still has it; return whether it was done."""
        with self._opened() as fd:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            os.unlink(self.name, dir_fd=self._folder.fd)
        self.removed.delete()
        return True

    def _starts(self, offsets: Iterable[int] | None, end: int) -> list[int]:
        """Return those of these offsets at which a whole line begins (None: all)."""
        if offsets is None:
            return [at for at, _ in self.read(0, end)]
        with self._opened() as fd:
            wanted = sorted({each for each in offsets if 0 <= each < end})
            return [at for at in wanted if at == 0 or os.pread(fd, 1, at - 1) == b"\n"]

    def behind_line(self, at: int, end: int) -> int:
        """Return where the next line begins, behind the one that an offset is in; `end` if there is none before it."""
        with self._opened() as fd:
            while at < end:
                data = os.pread(fd, min(_CHUNK, end - at), at)
                found = data.find(b"\n")
                if found >= 0:
                    return at + found + 1
                if not data:
                    break
                at += len(data)
        return end

    def _number_at(self, at: int) -> int:
        with self._opened() as fd:
            return number_of_line(os.pread(fd, _HEAD, at), self.number)

    def _last(self, end: int) -> int:
        """Return where the last line begins, of those that end at an offset."""
        at = max(0, end - 1)
        with self._opened() as fd:
            while at > 0:
                begin = max(0, at - _CHUNK)
                found = os.pread(fd, at - begin, begin).rfind(b"\n")
                if found >= 0:
                    return begin + found + 1
                at = begin
        return 0

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        fd = open_regular(self._folder, self.name, os.O_RDONLY, MOST_FILE)
        try:
            yield fd
        finally:
            os.close(fd)


class Removed:
    """The list of a file's removed lines. Every method raises OSError."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = f".{name}.removed"
        self._read = 0
        self.offsets: set[int] = set()

    def refresh(self) -> None:
        """Read what was appended since."""
        try:
            fd = open_regular(self._folder, self._name, os.O_RDONLY, MOST_BYTES)
        except FileNotFoundError:
            self._read, self.offsets = 0, set()
            return
        except ValueError as error:  # no list of ours hides no letter
            logger.warning("%s: left alone: %s", self._folder.path / self._name, error)
            return
        try:
            while data := os.pread(fd, _CHUNK, self._read):
                end = data.rfind(b"\n") + 1
                if end == 0:
                    return
                found = map(_REMOVED.fullmatch, data[:end].split(b"\n"))
                self.offsets.update(int(each[1]) for each in found if each is not None)
                self._read += end
        finally:
            os.close(fd)

    def append(self, offsets: Iterable[int]) -> None:
        """Add lines to the list. An entry that a killed process left torn lacks its end, and is none.

        Raises:
            ValueError: another file has its name.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        fd = open_regular(self._folder, self._name, flags, MOST_BYTES)
        try:
            size = os.fstat(fd).st_size
            torn = b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""
            _write(fd, torn + b"".join([b"%d;\n" % each for each in offsets]))
            os.fsync(fd)
        finally:
            os.close(fd)
        if size == 0:
            self._folder.sync()
        self.refresh()

    def delete(self) -> None:
        """Delete the list."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._folder.fd)
        self._read, self.offsets = 0, set()


def open_regular(folder: Folder, name: str, flags: int, most: int) -> int:
    """Open a file of the folder and return its descriptor.

    Raises:
        ValueError: it is not a regular file, or is too large. A symbolic link is never followed.
        OSError
    """
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=folder.fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        if stat.S_ISREG(os.stat(name, dir_fd=folder.fd, follow_symlinks=False).st_mode):
            raise
        raise ValueError("it is not a regular file") from error
    found = os.fstat(fd)
    wrong = ""
    if not stat.S_ISREG(found.st_mode):
        wrong = "it is not a regular file"
    elif found.st_size > most:
        wrong = f"it has {found.st_size} bytes, and {most} are the most that are read"
    if wrong:
        os.close(fd)
        raise ValueError(wrong)
    return fd


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
