"""The address of a queue, written `plainlmdb:FOLDER?queue=NAME`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from redelivery.codes import Code
from redelivery.errors import InvalidURL, Permanent

DEAD_LETTERS = "-dead-letters"  # the end of a dead letter queue's name
NAME_BYTES = 400  # of LMDB's 511 for a key


@dataclass(frozen=True, slots=True)
class Address:
    """A queue in the LMDB file of a folder."""

    folder: str
    queue: str = "default"

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse a URL. Raises InvalidURL."""
        form = "it is written plainlmdb:FOLDER?queue=NAME (plainlmdb:///FOLDER if the path is absolute), no more"
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise InvalidURL(f"not a valid URL: {error}; {form}") from None
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        address = cls(unquote(parts.path), query.pop("queue", "default"))
        if parts.netloc or not parts.path or parts.fragment or query:
            raise InvalidURL(f"not a valid plainlmdb URL; {form}")
        try:
            _ = address.prefix, address.dead_letters.prefix
        except Permanent as error:
            raise InvalidURL(f"plainlmdb: {error}") from None
        return address

    @property
    def url(self) -> str:
        """Its URL."""
        return f"plainlmdb:{quote(self.folder)}?queue={quote(self.queue, safe='')}"

    @property
    def prefix(self) -> bytes:
        """The beginning of the keys of its messages. Raises Permanent: LMDB cannot have such a key."""
        name = self.queue.encode(errors="surrogatepass")
        if not 0 < len(name) <= NAME_BYTES or b"\0" in name:
            shown = repr(self.queue[:100])
            text = f"no queue can be called {shown}: a name has 1 to {NAME_BYTES} bytes, none of them 0"
            raise Permanent(text, code=Code.INVALID_DESTINATION)
        return name + b"\0"

    @property
    def dead_letters(self) -> Address:
        """Its dead letter queue; a dead letter queue is its own."""
        return self if self.queue.endswith(DEAD_LETTERS) else self.sibling(self.queue + DEAD_LETTERS)

    def sibling(self, queue: str) -> Address:
        """Another queue in the same file."""
        return replace(self, queue=queue)
