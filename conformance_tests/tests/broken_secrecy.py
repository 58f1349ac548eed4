"""Brokers that show secrets, or that hostile texts harm. See `broken.py`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import ClassVar

from broken import Broken

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Fatal
from redelivery_conformance.memory import MemorySender, Store

SHOWN = "a_secret_option_shows_nowhere_when_all_fails[memory-literal-wrong-credentials]"


class Knowing(Broken):
    """Keeps the password that it is given."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(url, options)
        self.password = str(options.get("password", ""))


class QuotesThePassword(Knowing):
    """In an error at the first send, not before."""

    caught_by = SHOWN

    class SenderRole(MemorySender):
        def send(self, batch: Batch, *, deadline: float) -> None:
            raise Fatal(f"memory: the server refuses {self.broker.password!r}")


class QuotesItsUrl(Broken):
    """With the password in it, in how a batch was settled: opening the sender shows nothing."""

    caught_by = "a_password_in_a_url_shows_nowhere_when_all_fails[memory-wrong-credentials]"

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(url, options)
        self.url = url

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            return Settled(batch=batch.number, error=Fatal(f"memory: {self.broker.url} refuses this user"))


class LogsThePassword(Knowing):
    """By the logger of its client, at DEBUG."""

    caught_by = SHOWN.replace("literal", "reference")

    def sender(self) -> Sender:
        logging.getLogger("memory_client.frames").debug("out: %s", {"password": self.password})
        return super().sender()


class ShowsThePasswordInItsRepr(Knowing):
    caught_by = SHOWN.replace("wrong-credentials", "refused-connection")

    def __repr__(self) -> str:
        return f"ShowsThePasswordInItsRepr({self.password})"


class DiesOfALineBreak(Broken):
    """With an error that is none of ours."""

    caught_by = "a_hostile_option_is_taken_or_refused_in_one_short_line[memory-newline]"

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(url, options)
        if "\n" in options.get("password", ""):
            raise ValueError("a line break")


class ReadsSlowly(Broken):
    """Looks at each character of a name again for each that follows."""

    caught_by = "what_others_name_is_read_in_time_linear_in_it[memory-a]"
    unit: ClassVar[float] = 2.5e-8

    def sibling(self, name: str) -> str:
        until = time.process_time() + len(name) ** 2 * self.unit
        while time.process_time() < until:
            pass
        return super().sibling(name)
