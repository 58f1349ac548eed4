"""Brokers with faults in reading letters as columns, in splits and as a stream. See `broken.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from broken import Broken

from redelivery.contract.broker import LetterBatch, Support, Wanted
from redelivery.contract.letters import WHOLE
from redelivery.errors import ConfigurationError, Unsupported
from redelivery_conformance.memory import FULL, MemoryDeadLetters


class ReadsOtherHeaders(Broken):
    caught_by = "reading_shows_what_browsing_shows"

    class LettersRole(MemoryDeadLetters):
        def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
            for batch in super().read(split, wanted):
                yield replace(batch, messages=replace(batch.messages, headers=None))


class TakesTheHintForTheAnswer(Broken):
    """Shows letters before a time, where those since it are wanted."""

    caught_by = "hints_of_what_is_wanted_hide_nothing_that_is_wanted"

    class LettersRole(MemoryDeadLetters):
        def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
            for batch in super().read(split, wanted):
                yield batch.take(range(1)) if wanted.positions else batch


class LosesTheColumnThatIsWanted(Broken):
    caught_by = "columns_that_are_not_wanted_may_be_absent_and_the_others_are_whole"

    class LettersRole(MemoryDeadLetters):
        def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
            for batch in super().read(split, wanted):
                yield replace(batch, messages=replace(batch.messages, headers=None)) if wanted.columns else batch


class ShowsALetterThatIsNotThere(Broken):
    caught_by = "an_empty_place_has_nothing_to_read"

    class LettersRole(MemoryDeadLetters):
        def splits(self, wanted: Wanted) -> Sequence[str]:
            return super().splits(wanted) or ["1-2"]

        def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
            if not self.messages():
                raise Unsupported("memory: nothing is here")
            return super().read(split, wanted)


class ReadsAnySplit(Broken):
    caught_by = "a_split_of_another_place_is_refused"

    class LettersRole(MemoryDeadLetters):
        def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
            return super().read(split if "-" in split else WHOLE, wanted)


class SplitsOverlap(Broken):
    caught_by = "splits_together_show_every_letter_once[memory-8]"

    class LettersRole(MemoryDeadLetters):
        def splits(self, wanted: Wanted) -> Sequence[str]:
            first, *others = super().splits(wanted)
            return [first, *(f"{int(each.partition('-')[0]) - 1}-{each.partition('-')[2]}" for each in others)]


class OneSplitIsEmpty(Broken):
    """A single reader sees no letter: its only split is the one that is left out."""

    caught_by = "splits_together_show_every_letter_once[memory-1]"

    class LettersRole(MemoryDeadLetters):
        def splits(self, wanted: Wanted) -> Sequence[str]:
            return super().splits(wanted)[:-1]


class SplitsAreReadBackwards(Broken):
    caught_by = "letters_of_a_split_come_oldest_first"

    class LettersRole(MemoryDeadLetters):
        def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
            for batch in super().read(split, wanted):
                yield batch.take(range(len(batch))[::-1])


class ASplitIsForOneReader(Broken):
    """It notes which split was begun, and shows it to nobody else."""

    caught_by = "a_split_is_read_again_while_its_first_reader_still_has_it"
    begun: ClassVar[set[str]] = set()

    class LettersRole(MemoryDeadLetters):
        def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
            name = f"{self.queue} {split}"
            if name not in ASplitIsForOneReader.begun:
                ASplitIsForOneReader.begun.add(name)
                yield from super().read(split, wanted)


class SplitsHaveNoEnd(Broken):
    caught_by = "what_comes_after_the_plan_is_in_no_split"

    class LettersRole(MemoryDeadLetters):
        def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
            last = str(max(self.messages(), default=0))
            ends = split.endswith(f"-{sorted(self.messages())[39]}")
            return super().read(f"{split.partition('-')[0]}-{last}" if ends else split, wanted)


class RemembersWhatItPlanned(Broken):
    caught_by = "what_was_removed_since_the_plan_is_gone"
    planned: ClassVar[dict[str, list[LetterBatch]]] = {}

    class LettersRole(MemoryDeadLetters):
        def splits(self, wanted: Wanted) -> Sequence[str]:
            splits = super().splits(wanted)
            RemembersWhatItPlanned.planned.update({each: list(super().read(each, wanted)) for each in splits})
            return splits

        def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
            return iter(RemembersWhatItPlanned.planned[split])


class RemovesItsNeighbours(Broken):
    caught_by = "readers_that_remove_their_own_splits_disturb_nobody"

    class LettersRole(MemoryDeadLetters):
        def remove(self, positions: Sequence[str]) -> int:
            super().remove([str(int(each) + 1) for each in positions])
            return super().remove(positions)


class SplitsWithoutSayingSo(Broken):
    caught_by = "without_splits_the_place_is_read_by_one"
    capabilities = replace(FULL, splits=Support.NONE)

    class LettersRole(MemoryDeadLetters):
        def splits(self, wanted: Wanted) -> Sequence[str]:
            return ["1-2", "3-4"]


class BetweenIsWhateverIsThere(Broken):
    caught_by = "between_two_cursors_is_what_came_between"

    class LettersRole(MemoryDeadLetters):
        def splits(self, wanted: Wanted) -> Sequence[str]:
            return super().splits(replace(wanted, before=None))


class OneStepToTheEnd(Broken):
    caught_by = "cursors_step_through_a_place"

    class LettersRole(MemoryDeadLetters):
        def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
            return super().cursor(after=after)


class CursorsCountWhatIsThere(Broken):
    caught_by = "removing_moves_no_cursor"

    class LettersRole(MemoryDeadLetters):
        def _last(self) -> int:
            return len(self.messages())


class AnyTextIsACursor(Broken):
    caught_by = "a_cursor_of_another_place_is_refused"

    class LettersRole(MemoryDeadLetters):
        def _number(self, text: str | None, default: int) -> int:
            try:
                return super()._number(text, default)
            except ConfigurationError:
                return default


class CursorsWithoutSayingSo(Broken):
    caught_by = "without_cursors_asking_for_one_is_unsupported"
    capabilities = replace(FULL, cursors=Support.NONE)

    class LettersRole(MemoryDeadLetters):
        def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
            return "1"
