"""The address of a tube, written `beanstalk://HOST:PORT/TUBE`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from redelivery.errors import InvalidURL, Permanent
from redelivery.kit.address import quoted, split_url
from redelivery.kit.errors import Code
from redelivery.kit.names import DeadLetterNames

NAMES = DeadLetterNames()  # "orders-dead-letters" of "orders"
PORT = 11300
NAME = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")  # as protocol.txt of beanstalkd has it


@dataclass(frozen=True, slots=True)
class Address:
    """A tube of a server; a tube is a queue."""

    host: str
    port: int
    tube: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse a URL. Raises InvalidURL."""
        wanted = InvalidURL("a beanstalk URL is beanstalk://HOST:PORT/TUBE, without a login, and no more")
        parts = split_url(url)
        if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
            raise wanted
        try:
            address = cls(parts.hostname, parts.port or PORT, unquote(parts.path[1:]))
            _ = address.checked, address.dead_letters.checked
        except ValueError:  # the port is not a number
            raise wanted from None
        except Permanent as error:
            raise InvalidURL(f"beanstalk: {error}") from None
        return address

    @property
    def url(self) -> str:
        """Its URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"beanstalk://{host}:{self.port}/{quote(self.tube, safe='')}"

    @property
    def checked(self) -> str:
        """The tube's name. Raises Permanent: no tube can have it."""
        if not NAME.fullmatch(self.tube):
            text = f"no tube can be called {quoted(self.tube)}: a name has 1 to 200 of A-Z a-z 0-9 + / ; . $ _ ( ) -"
            raise Permanent(text, code=Code.INVALID_DESTINATION)
        return self.tube

    @property
    def dead_letters(self) -> Address:
        """Its dead letter tube; a dead letter tube is its own."""
        return self.sibling(NAMES.of(self.tube))

    def sibling(self, tube: str) -> Address:
        """Another tube of the same server."""
        return replace(self, tube=tube)
