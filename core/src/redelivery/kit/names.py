"""How the dead letter place of a queue or topic is named."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeadLetterNames"]


@dataclass(frozen=True, slots=True)
class DeadLetterNames:
    """The rule by which a plugin names dead letter queues: the name of the queue, and a suffix.

    A dead letter queue is its own dead letter queue.

    Attributes:
        suffix: what is added.
        ending: what a name must end with at this broker, and keeps: ".fifo".
        ignores_case: the broker takes names that differ in case for one.
    """

    suffix: str = "-dead-letters"
    ending: str = ""
    ignores_case: bool = False

    def is_dead_letters(self, name: str) -> bool:
        """Whether a name is that of a dead letter queue."""
        return (name.lower() if self.ignores_case else name).removesuffix(self.ending).endswith(self.suffix)

    def of(self, name: str) -> str:
        """Return the name of the dead letter queue of a queue."""
        if self.is_dead_letters(name):
            return name
        stem = name.removesuffix(self.ending)
        return stem + self.suffix + name[len(stem) :]

    def source(self, name: str) -> str:
        """Return the name of the queue whose dead letters are kept here; of any other queue, its own name."""
        if not self.is_dead_letters(name):
            return name
        stem = name.removesuffix(self.ending)
        return (stem[: -len(self.suffix)] or stem) + name[len(stem) :]
