"""`World`: what every world of the simulation has: a scheduler, a network, and processes that may be killed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import ClassVar, Final

from redelivery.contract.message import Message
from redelivery.formats import dialects
from simulation import invariants
from simulation.broker import Network
from simulation.choices import Choices
from simulation.invariants import Item
from simulation.scheduler import Process, Scheduler

#: The headers that a letter keeps when it is sent back: how often it was tried, and sent back.
MARKERS: Final = ("redelivery-letter", "redelivery-letter-2")
#: The chances that a request goes wrong: of a calm run, and of others.
_INTENSITIES = (0.0, 0.05, 0.15, 0.35)


class World(ABC):
    """One run of the code under test.

    Attributes:
        name: as `--only` takes it.
        states: the rare states that runs of this world must reach, among many of them.
        originals: what is sent, by name.
        dead: the process that is killed last, if any.
    """

    name: ClassVar[str]
    states: ClassVar[tuple[str, ...]]

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.scheduler = Scheduler(choices)
        self.scheduler.check = lambda: invariants.always(self.items())
        self.scheduler.killed = self.on_kill
        intensity = choices.pick("intensity", _INTENSITIES)
        self.network = Network(self.scheduler, intensity, self.named)
        self.originals: dict[str, Message] = {}
        self._names: dict[bytes, str] = {}
        self._known: dict[int, tuple[Message, str]] = {}

    @abstractmethod
    def run(self) -> None:
        """Run to the end. Raises Violated."""

    @abstractmethod
    def items(self) -> Iterable[Item]:
        """Return all that exists, as an observer sees it who sees everything."""

    def journal_is_full(self) -> bool:
        """Whether the disk of a journal is full now."""
        return False

    def on_kill(self, process: Process) -> None:  # noqa: B027 - few worlds look
        """Take note that a process was killed."""

    # --- for worlds ---

    def send(self, message: Message, name: str) -> Message:
        """Take note of an original; its value names it."""
        self.originals[name] = message
        self._names[message.value or b""] = name
        return message

    def named(self, message: Message) -> str:
        """Return whose copy a stored message is, or the letter of."""
        found = self._names.get(message.value or b"")
        if found is None:
            known = self._known.get(id(message))
            if known is None or known[0] is not message:
                known = self._known[id(message)] = message, self._names[dialects.strip(message).value or b""]
            found = known[1]
        return found

    def lives(self, name: str, most: int, likely: int, chance: float) -> Iterator[Process]:
        """Return processes that are each started after the last one was killed; the last one lives, undisturbed.

        Args:
            name: of the processes.
            most: how many are killed at most.
            likely: they are killed at one of their first so many seams.
            chance: that they are killed at all.
        """
        for number in range(most + 1):
            last = number == most
            dies_at = 0 if last else self.choices.often("killed at seam", likely, chance)
            yield Process(f"{name}-{number + 1}", dies_at)

    def start(self, target: Callable[[], object], process: Process) -> BaseException | None:
        """Run a process to its end; return what it ended with."""
        return self.scheduler.run(target, process)


def difference(original: Message, copy: Message) -> str:
    """Return in what a message differs from the original, apart from our marker; an empty text: in nothing."""
    copy = replace(copy, headers=tuple(each for each in copy.headers if each[0] not in MARKERS))
    for name in ("value", "key", "headers", "id"):
        was, now = getattr(original, name), getattr(copy, name)
        if was != now:
            return f"{name} is {now!r}, and was {was!r}"
    return "" if original.native == copy.native else f"native is {copy.native!r}, and was {original.native!r}"
