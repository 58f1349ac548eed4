"""The test harness: a folder in a scratch folder. It needs the extra `testing`.

It reads the stored letters as JSON files, without the plugin's code. Core decodes the events.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from redelivery.contract.message import Message
from redelivery.kit import events
from redelivery.kit.address import split_url
from redelivery_conformance.harness import CannotShow, Harness, Outage, Place, Runtime, RuntimeKind


class FilePlace(Place):
    """One new folder."""

    options: Mapping[str, str] = {}
    many = 1_000  # each message is a file with its own fsync

    def __init__(self, path: Path, form: str) -> None:
        self.path = path
        path.mkdir(parents=True)
        # With the third member, so that the whole context comes back, and not only its reason.
        self.url = f"file://{quote(str(path))}?context=true&format={form}"

    def stored(self, destination: str | None = None) -> Sequence[Message]:  # noqa: ARG002 - a folder has no others
        return [
            events.from_json(json.loads(line)["event"])
            for path in sorted(self.path.glob("*.jsonl"))
            for line in self._lines(path)
        ]

    def _lines(self, path: Path) -> Iterator[bytes]:
        removed = path.with_name(f".{path.name}.removed")
        is_listed = path.name.startswith("letters-") and removed.exists()
        gone = {int(each[:-1]) for each in removed.read_text().split()} if is_listed else set()
        at = 0
        for line in path.read_bytes().splitlines(keepends=True):
            if at not in gone:
                yield line
            at += len(line)

    def snapshot(self) -> object:
        if not self.path.is_dir():
            return self.path.read_bytes()
        return {path.name: path.read_bytes() for path in self.path.iterdir()}

    def unreachable(self) -> str:
        return f"file://{quote(str(self.path / 'no-such-folder'))}"

    @contextmanager
    def outage(self, kind: Outage = "refused") -> Iterator[None]:
        """Move the folder away, so that it cannot be opened."""
        if kind != "refused":
            raise CannotShow(f"an outage, {kind}: a file has no connections")
        away = self.path.with_name(f"{self.path.name}-away")
        self.path.rename(away)
        try:
            yield
        finally:
            away.rename(self.path)

    def vanish(self) -> None:
        shutil.rmtree(self.path)

    def alter(self) -> None:
        """Replace the folder by a file."""
        self.path.rmdir()
        self.path.write_bytes(b"not a folder")


class FileRuntime(Runtime):
    """Folders in one folder."""

    cannot_show = ("power loss: no test cuts it", "several hosts: a folder is one host's")

    def __init__(self, kind: RuntimeKind, path: Path, form: str) -> None:
        self.kind = kind
        self.description = f"folders in {path}, format {form}"
        self._path = path
        self._form = form

    def place(self) -> FilePlace:
        return FilePlace(self._path / self.fresh_name("conformance"), self._form)


class FileHarness(Harness):
    """The real folder, not a stand-in.

    Args:
        form: the URL's `format`.
    """

    name = "file"

    def __init__(self, form: str = "letter") -> None:
        self._form = form

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": lambda scratch: FileRuntime("embedded", scratch, self._form)}

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002 - a folder needs neither
        return FileRuntime("url", Path(unquote(split_url(url).path)), self._form)
