"""Dead letters of any broker: browse, send back, forward, remove.

This module opens a dead letter queue for users. `redrive.py` moves letters, `selection.py` selects them. Must not know
any broker or dialect.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from redelivery.base.clock import SystemClock
from redelivery.base.urls import redact
from redelivery.contract.broker import Broker, Capabilities, DeadLetters, Letter, LetterBatch, Support, Wanted
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.deadletters.journal import Journal
from redelivery.deadletters.letter_senders import ForwardSender, LetterSender, RedriveSender, RowSender
from redelivery.deadletters.operations import FORWARD, HOP_LIMIT, LetterOperation, mendable, redrive_operation
from redelivery.deadletters.parts import Part, PartLetters
from redelivery.deadletters.patching import Patch
from redelivery.deadletters.redrive import (
    EDITED,
    PARKED,
    RedriveReport,
    RedriveSettings,
    Transfer,
    digest,
    name_of,
)
from redelivery.deadletters.returned import Returned
from redelivery.deadletters.scan import scan
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.triage import Parked, Triage
from redelivery.deadletters.triage import default_path as triage_path
from redelivery.deadletters.trust import Targets, context_of
from redelivery.errors import ConfigurationError, RedeliveryError, Unsupported
from redelivery.formats import signing
from redelivery.formats.signing import Verified
from redelivery.policy.waves import Waves
from redelivery.registry import connect, installed, is_at, own_options
from redelivery.sending.connector import (
    ConnectionFactory,
    Connector,
    Resources,
    connected,
    refuse_destination,
    sink_options,
    sink_url,
    true_url,
)
from redelivery.sending.send_queue import Bounds, SendQueue

T = TypeVar("T")

#: The default spec for sending a letter; a letter that fails permanently stays in place.
_SPEC: Final = DeliverySpec(retry=3, tolerance="all", allow_skip=True, log_enable=False)
#: Letters that fail permanently never fail a run, however many they are.
_TOLERANT: Final[Mapping[str, Any]] = {
    "tolerance": "all",
    "tolerance_limit": None,
    "tolerance_rate_limit": None,
    "tolerance_rate_duration": None,
}


class DeadLetterQueue:
    """The dead letters of one destination. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        connector: Connector,
        broker: Broker,
        letters: DeadLetters,
        options: Mapping[str, str],
        *,
        direct: bool,
        home: str | None = None,
        keys: Sequence[bytes] = (),
        triage: Path | None = None,
    ) -> None:
        self._keys = keys
        self._triage_path = triage
        self._triage: Triage | None = None
        self._connector = connector
        self._options = options
        self._broker = broker
        self._letters = Verified(letters, keys)
        self._direct = direct
        self._home = home

    def __iter__(self) -> Iterator[Letter]:
        """Return the letters, oldest first, left in place, each with its whole context."""
        for letter in self._letters.browse():
            yield replace(letter, context=context_of(letter))

    def select(self, where: Selection | None = None) -> Iterator[Letter]:
        """Return the letters of a selection, oldest first, left in place, each with its whole context."""
        now_ms, selection = self.now_ms(), self._within(where)
        if not self._broker.capabilities.splits:  # a batch may take long to fill
            yield from (letter for letter in self if selection.admits(letter, now_ms))
            return
        wanted = selection.wanted(now_ms)
        for batch in itertools.chain.from_iterable(self._letters.read(s, wanted) for s in self._letters.splits(wanted)):
            for index in selection.admitted(batch, range(len(batch)), now_ms):
                letter = batch.letter(index)
                yield replace(letter, context=context_of(letter))

    def scan(
        self,
        each: Callable[[LetterBatch], T],
        where: Selection | None = None,
        *,
        columns: frozenset[str] | None = None,
        threads: int = 1,
    ) -> Iterator[T]:
        """Return what `each` makes of every batch of the letters of a selection, in their order, left in place.

        Args:
            each: called with letters as their broker returned them, possibly by several threads at once.
            where: only the selected letters.
            columns: columns of `Batch` that `each` looks at; None: all.
            threads: how many read side by side, where the broker allows it.
        """
        now_ms, selection = self.now_ms(), self._within(where)
        readers = threads if self._broker.capabilities.splits else 1
        wanted = replace(selection.wanted(now_ms), readers=readers, columns=None if where else columns)

        def selected(batch: LetterBatch) -> T | None:
            rows = selection.admitted(batch, range(len(batch)), now_ms)
            return each(batch if len(rows) == len(batch) else batch.take(rows)) if rows else None

        return (found for found in scan(self._letters, self._look, wanted, selected) if found is not None)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the broker of these letters."""
        return self._broker.capabilities

    @property
    def place(self) -> str:
        """The URL of the dead letter queue, redacted. Raises BrokerError, ConfigurationError."""
        return redact(self._places()[0])

    @property
    def broker(self) -> str:
        """The name of the broker's plugin."""
        return self._broker.name

    @property
    def looking_takes(self) -> bool:
        """Whether a look at letters hides them from others for a time, and counts as a delivery of each."""
        return self._broker.capabilities.browse is not Support.NATIVE

    def depth(self) -> int | None:
        """Return how many letters the broker counts, without a look at any; None where it does not count them.

        Only where `looking_takes`: there a dead letter queue is a queue like any other, and its depth is that of its
        letters. Raises BrokerError, ConfigurationError.
        """
        if not self.looking_takes or not self._broker.capabilities.depth:
            return None
        if self._direct:
            return _depth(self._broker)
        with contextlib.ExitStack() as opened:
            return sum(_depth(opened.enter_context(self._at(each))) for each in self._places())

    def now_ms(self) -> int:
        """Return the time, milliseconds since the epoch."""
        return self._connector.clock.wall_ms()

    @property
    def triage(self) -> Triage:
        """What people have parked or noted here. Raises ConfigurationError, JournalError, BrokerError."""
        if self._triage is None:
            place = self.place
            self._triage = Triage(self._triage_path or triage_path(place), place, clock=self._connector.clock)
            self._connector.resources.callback(self._triage.close)
        return self._triage

    def parked(self) -> Parked:
        """Return what is parked here now. Raises as `triage`."""
        if self._triage is None and self._triage_path is None:
            try:
                triage_path(self.place)
            except ConfigurationError:
                return Parked()  # a user without a home folder has parked nothing
        return self.triage.parked()

    def _parked_rows(self, batch: LetterBatch) -> Sequence[int]:
        return self.parked().rows(batch)

    def _within(self, where: Selection | None) -> Selection:
        """Return a selection that knows what is parked here, where it asks for that."""
        return (where or Selection()).within(self._parked_rows)

    def remove(self, ids: Collection[str]) -> int:
        """Remove letters by message id or position; return how many."""
        return self.remove_at([letter.position for letter in self.select(Selection().of(ids))])

    def made(self) -> str | None:
        """Return what tells this place from one that is made again under its name; None where nothing does."""
        if not self._broker.capabilities.cursors:
            return None
        with contextlib.suppress(Unsupported):  # not for every place of this broker
            return self._letters.cursor()
        return None

    def remove_at(self, positions: Sequence[str], *, made: str | None = None) -> int:
        """Remove letters by position alone; return how many existed.

        Args:
            positions: of the letters.
            made: `made` when the positions were read, perhaps by another process; None: not known.

        Raises:
            Fatal: code CONFLICT: the place was made again since, so that its positions name other letters.
            BrokerError: they may be removed or not.
        """
        if not positions:
            return 0
        if made is not None:
            self._letters.cursor(after=made)
        return self._letters.remove(positions)

    def purge(self) -> int:
        """Remove all letters; return how many."""
        return self._letters.purge()

    def redrive(
        self,
        ids: Collection[str] | None = None,
        to: str | None = None,
        *,
        where: Selection | None = None,
        settings: RedriveSettings | None = None,
        journal: Path | Journal | None = None,
        spec: DeliverySpec | None = None,
        hop_limit: int = HOP_LIMIT,
        allow_targets: Collection[str] = (),
        new_ids: bool = False,
        patch: Patch | None = None,
        waves: Waves | None = None,
        part: Part | None = None,
    ) -> RedriveReport:
        """Send letters back to their destination; each is removed once the destination has confirmed it.

        A letter starts again at attempt 1. Its attempt total and its hops are kept; the error context that we wrote is
        removed. A message that a writer of ours could not send gets the id `<id>~<hop>`; one that had been stored
        before it died, by whatever application, keeps its id and all that its broker's own message had.

        Args:
            ids: message ids or positions; None: all letters that exist now.
            to: another destination, also for letters with another target. None: the destination where they failed; of
                a sink, letters of the destination that was named, and those of which nothing says where they failed.
            where: of these, only the selected ones.
            settings: limit, rate, dry run, and when to stop.
            journal: a file that lets a killed run continue, and prevents a second run at the same time; or an open
                journal.
            spec: retries, backoff and timeouts of sending. A letter that fails permanently stays in place.
            hop_limit: letters that were sent back so often stay.
            allow_targets: targets that letters may go to, if their headers name one other than the destination: names,
                or patterns as in a shell (`orders-*`; for a routing column of the broker `column=value`). A letter with
                another target stays, unless it is signed: a header alone must not choose where it goes.
            new_ids: give the id of the hop to every message.
            patch: edits every message (`deadletters.patching.Patch`). A letter that it does not fit stays. Its
                destination counts as `to` does: no target of a letter is followed. A letter that may have been sent in
                another form, as an earlier run was killed, stays; only a journal knows of that.
            waves: send some, wait for what comes back, and send more only where little does (`policy.waves.Waves`).
                With a journal, a run that was killed or interrupted goes on in its wave when it is called again
                with the same arguments; after it has stopped or ended it begins with the first wave. Letters that died
                after the first wave began stay.
            part: only these letters, as one of several processes (`deadletters.parts`); its leader counts which letters
                came back.

        Raises:
            ConfigurationError: no destination is known, or it is the dead letter queue itself, or the journal belongs
                to another queue.
            JournalError: the journal is in use, or cannot be read or written.
            BrokerError: the destination or the place cannot be used; letters not removed are still there.
        """
        self._check_target(to)
        if isinstance(ids, str):
            raise ConfigurationError(f"redrive: ids is a list of ids, not one text: write [{ids!r}]")
        selection = self._meant(where, to)
        meant = selection if ids is None else selection.of(ids)
        settings = settings or RedriveSettings()

        def opened(connector: Connector) -> tuple[LetterSender | None, Capabilities]:
            there = self._towards(connector, to)
            broker = self._destination(there, to)
            if patch is not None and patch.destination is not None:
                self._check_named(patch.destination, broker)
            send_queue = None if settings.dry_run else there.destination(broker, settings.stop)
            return None if send_queue is None else RedriveSender(
                send_queue, connector.spec, connector.clock
            ), broker.capabilities

        if isinstance(allow_targets, str):
            raise ConfigurationError(f"redrive: allow_targets is a list, not one text: write [{allow_targets!r}]")
        if part is not None and waves is not None:
            raise ConfigurationError("redrive: several processes do not go in waves: leave out `part` or `waves`")
        name = self.name_of(to, where, settings.limit, ids, patch, waves)
        targets = self._targets(to, allow_targets)
        operation = redrive_operation(
            targets if patch is None or patch.destination is None else replace(targets, none=True),
            hop_limit,
            new_ids=new_ids,
            elsewhere=not self._is_of_plugin(self._towards(self._connector, to).url),
            patch=patch,
        )
        return self._transfer(operation, opened, spec, meant, settings, journal, name=name, part=part, waves=waves)

    def name_of(
        self,
        to: str | None,
        where: Selection | None,
        limit: int | None,
        ids: Collection[str] | None = None,
        patch: Patch | None = None,
        waves: Waves | None = None,
    ) -> str:
        """Return the name of a redrive with these arguments in its journal."""
        more = "" if patch is None else patch.form, () if waves is None else waves.sizes
        named = None if ids is None else sorted(ids)
        return name_of("redrive", to, str(self._meant(where, to)), named, limit, *more)

    def _check_named(self, destination: str, there: Broker) -> None:
        """Refuse a destination of a patch that cannot be one. Raises ConfigurationError."""
        if not there.capabilities.destinations:
            raise ConfigurationError(
                "patch: a message has no destination of its own at this broker: leave out `destination`, and name the "
                "place with `to`"
            )
        with contextlib.suppress(Unsupported):
            if there.sibling(destination) in self._places():
                raise ConfigurationError(f"patch: {destination!r} is the place that the letters are in; say where to")

    @contextlib.contextmanager
    def row_sender(self, to: str | None = None, *, spec: DeliverySpec | None = None) -> Iterator[RowSender]:
        """Open the destination for rows that letters have become; arguments and errors as of `redrive`."""
        self._check_target(to)
        with Resources() as resources:
            there = self._towards(replace(self._connector, spec=_given(spec), resources=resources), to)
            yield RowSender(there.destination(self._destination(there, to)), there.spec, there.clock)

    def read(
        self,
        part: Part,
        *,
        to: str | None = None,
        where: Selection | None = None,
        hop_limit: int = HOP_LIMIT,
        allow_targets: Collection[str] = (),
        report: RedriveReport,
    ) -> Iterator[LetterBatch]:
        """Return the letters of a part that a redrive would send, to be mended first; left in place.

        A row that never became a message is one of them: it is kept so that it can be mended.

        Args:
            part: which letters; those that earlier runs have sent are left out.
            to: as of `redrive`.
            where: as of `redrive`.
            hop_limit: as of `redrive`.
            allow_targets: as of `redrive`.
            report: counts them.

        Raises:
            ConfigurationError, BrokerError: as `redrive`.
        """
        with Resources() as resources:
            towards = self._towards(replace(self._connector, resources=resources), to)
            there = self._destination(towards, to).capabilities
        targets, elsewhere = self._targets(to, allow_targets), not self._is_of_plugin(towards.url)
        selection = self._meant(where, to).within(part.parked.rows)
        for batch in itertools.chain.from_iterable(self._letters.read(split, part.wanted) for split in part.splits):
            kept = []
            meant = selection.admitted(batch, _unsent(batch, part.earlier), part.now_ms)
            parked = frozenset(part.parked.rows(batch))
            for index, said in mendable(batch, meant, there, targets, hop_limit, elsewhere=elsewhere):
                if part.limit is not None and report.selected >= part.limit:
                    break
                report.considered += 1
                if not report.leave(PARKED if index in parked else said or _maybe_edited(batch, index, part.unsure)):
                    report.selected += 1
                    kept.append(index)
            if kept:
                yield batch if len(kept) == len(batch) else batch.take(kept)
            if part.limit is not None and report.selected >= part.limit:
                return

    def splits(self, wanted: Wanted) -> Sequence[str]:
        """Return the splits of the letters that exist now; see `redelivery.contract.broker.DeadLetters.splits`."""
        return self._letters.splits(wanted)

    def stored(self, part: Part) -> Iterator[LetterBatch]:
        """Return the stored letters of a part unchanged, in the order of `read`; left in place."""
        return (batch for split in part.splits for batch in self._letters.read(split, part.wanted))

    def still(self, part: Part, letters: Mapping[str, str]) -> list[str]:
        """Return which of these letters a part still holds: digests by position, of which there are few."""
        wanted = replace(part.wanted, positions=frozenset(letters))
        return [
            position
            for batch in itertools.chain.from_iterable(self._letters.read(split, wanted) for split in part.splits)
            for index, position in enumerate(batch.position.values)
            if position in letters and letters[position] == digest(batch.letter(index))
        ]

    def returned(self) -> Returned:
        """Return what counts the letters that were sent back before and are dead again, from now on."""
        found = Returned(self._look, self._connector.clock, cursors=bool(self._broker.capabilities.cursors))
        found.begin()
        return found

    def _look(self) -> DeadLetters:
        """Open the queue again."""
        return Verified(self._broker.dead_letters(direct=self._direct), self._keys)

    def move_back(self, *, wait: float = 300.0) -> int:
        """Have the broker itself move all letters back to the source, unchanged; return how many.

        Faster than `redrive`, and without its account: a letter keeps the error context that we wrote, and hops are not
        counted, so the hop limit does not end its returns.

        Args:
            wait: how long it may take, in seconds.

        Raises:
            ConfigurationError: this is a sink named by its URL, or letters are parked here.
            Unsupported: the broker does not offer this.
            BrokerError: see `redelivery.contract.broker.DeadLetters.move_back`.
        """
        if self.parked():
            raise ConfigurationError(
                "move_back: letters are parked here, and the broker would move them all; unpark them"
            )
        if self._direct:
            raise ConfigurationError("move_back: this is a sink named by its URL; `redrive` takes `to`")
        return self._letters.move_back(wait=wait)

    def forward(
        self,
        to: str | None = None,
        *,
        where: Selection | None = None,
        settings: RedriveSettings | None = None,
        journal: Path | None = None,
        spec: DeliverySpec | None = None,
        follow: bool = False,
        interval: timedelta = timedelta(seconds=10),
    ) -> RedriveReport:
        """Move what the broker itself dead-lettered (expired, delivered too often) to a sink, with its context.

        Each letter goes to the first of the sinks that takes it, in that sink's form and in the spec's format, and is
        removed once the sink has confirmed it. A letter that no sink takes stays.

        Args:
            to: the only sink; None: those of `spec`, except the queue itself.
            where: only the selected letters.
            settings: limit, rate, dry run, and when to stop.
            journal: as for `redrive`.
            spec: its sinks, format, retries, backoff and timeouts.
            follow: continue with messages that the broker gives up later, until `settings.stop` returns True or the
                limit is reached. Letters that stay are counted as the last look found them.
            interval: the time between two looks.

        Raises:
            ConfigurationError: no sink is named, or one is the destination itself, or the journal belongs to another
                queue.
            JournalError: the journal is in use, or cannot be read or written.
            BrokerError: no sink, or not the queue, can be used; letters not removed are still in place.
        """
        settings = settings or RedriveSettings(max_returns=None)
        if interval <= timedelta(0):
            raise ConfigurationError(f"interval: must be more than 0, not {interval}")

        def opened(connector: Connector) -> tuple[LetterSender | None, Capabilities]:
            sinks = list(self._sinks(connector, to, spec or _SPEC))
            if not sinks:
                raise ConfigurationError(
                    "forward: say where to, with `to` or with a spec whose deadLetterSink is another place"
                )
            if settings.dry_run:
                return None, sinks[0][2].capabilities
            send_queues = [connector.letters(url, there, sink.type) for sink, url, there in sinks]
            place = SendQueue(self.place, self._broker, connector.spec, connector.bounds, connector.clock)
            return ForwardSender(place, send_queues, connector.spec, connector.clock), send_queues[0].capabilities

        seconds = interval.total_seconds() if follow else None
        selection = where or Selection()
        name = name_of("forward", to, str(selection), settings.limit)
        return self._transfer(FORWARD, opened, spec, selection, settings, journal, name=name, follow=seconds)

    def close(self) -> None:
        """Close the connection."""
        self._connector.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _transfer(
        self,
        operation: LetterOperation,
        opened: Callable[[Connector], tuple[LetterSender | None, Capabilities]],
        spec: DeliverySpec | None,
        selection: Selection,
        settings: RedriveSettings,
        journal: Path | Journal | None,
        *,
        name: str,
        follow: float | None = None,
        part: Part | None = None,
        waves: Waves | None = None,
    ) -> RedriveReport:
        given = _given(spec)
        with Resources() as resources:
            letter_sender, there = opened(replace(self._connector, spec=given, resources=resources))
            book = None if settings.dry_run else journal
            if isinstance(book, Path):
                book = resources.enter_context(Journal(book, self.place))
            parked = self._parked_rows if part is None else part.parked.rows
            transfer = Transfer(
                self._letters if part is None else PartLetters(self._letters, part.splits, part.wanted),
                look=self._look,
                returned=Returned(self._look, self._connector.clock, cursors=bool(self._broker.capabilities.cursors))
                if part is None
                else None,
                selection=selection.within(parked),
                operation=operation,
                there=there,
                settings=settings,
                journal=book,
                name=name if part is None else None,
                now_ms=None if part is None else part.now_ms,
                earlier=part.earlier if part is not None and settings.dry_run else None,
                clock=self._connector.clock,
                follow=follow,
                waves=waves,
                partial=self._broker.capabilities.browse is Support.LOWER_BOUND,
                # A broker that cannot look without taking holds a batch only for some time.
                batches=bool(self._broker.capabilities.splits) or settings.rate is None,
                parked=parked,
            )
            return transfer.run(letter_sender)

    def _check_target(self, to: str | None) -> None:
        if to is None and self._direct and self._home is None:
            raise ConfigurationError("redrive: this is itself a queue of letters; say where its letters go, with `to`")

    def _towards(self, connector: Connector, to: str | None) -> Connector:
        """Return the connector to where letters go back to: `to`, else the destination that they failed at."""
        if to is None and self._home is None:
            return connector
        url = to or self._home or connector.url
        return replace(connector, url=url, options=own_options(url, self._options))

    def _meant(self, where: Selection | None, to: str | None) -> Selection:
        """Return which letters go back: of a sink that several destinations share, those of the one that was named."""
        selection = where or Selection()
        if to is not None or self._home is None:
            return selection
        home, options = self._at(self._home), self._options

        @lru_cache(maxsize=1024)
        def is_home(url: str) -> bool:
            return is_at(url, home, options)

        return selection.failed_at(redact(self._home), is_home)

    def _is_of_plugin(self, url: str) -> bool:
        """Return whether a URL is one of the plugin that reads the letters."""
        with contextlib.suppress(RedeliveryError):
            return installed().by_url(url).name == self._broker.name
        return True  # a test's own connection factory knows it

    def _at(self, url: str) -> Broker:
        return connect(url, own_options(url, self._options))

    def _targets(self, to: str | None, allowed: Collection[str]) -> Targets:
        is_own = lru_cache(maxsize=1024)(self._is_own)
        return Targets(allowed=tuple(allowed), is_own=is_own, none=to is not None)

    def _destination(self, connector: Connector, to: str | None) -> Broker:
        """Return where letters go back to. Raises ConfigurationError."""
        here = to in self._places() or (to is None and self._home is None)
        broker = self._broker if here else connector.connect()
        self._check_elsewhere("redrive", connector.url, broker)
        if not broker.capabilities.send:
            broker.sender().close()  # it raises, and says what to name instead: also in a dry run
        return broker

    def _is_own(self, target: str) -> bool:
        """Return whether a target of this name is the destination itself, however it is spelled."""
        with contextlib.suppress(RedeliveryError):  # such a name does not exist there, so it is another place
            there = self._broker if self._home is None else self._at(self._home)
            url = there.sibling(target)
            return there.canonical_url == url or self._at(url).is_at(there)
        return False

    def _check_elsewhere(self, doing: str, url: str, there: Broker) -> None:
        if not {url, there.canonical_url}.isdisjoint(self._places()) or (self._direct and there.is_at(self._broker)):
            raise ConfigurationError(f"{doing}: {redact(url)} is the place that the letters are in; say where to")

    def _sinks(self, connector: Connector, to: str | None, spec: DeliverySpec) -> Iterator[tuple[Sink, str, Broker]]:
        """Return URL and broker of each sink that letters are forwarded to. Raises ConfigurationError, BrokerError."""
        places = self._places()
        for sink in spec.dead_letter_sink if to is None else (Sink(uri=to),):
            here = to is None and not sink.options
            if here and not self._direct and sink.uri == NATIVE:
                continue  # the letters are already there, so no permission to send there is needed
            url = sink_url(sink, self._broker)
            if here and url in places:
                continue
            own = own_options(url, self._options)
            options = {**own, **sink_options(sink, self._broker, own)}
            there = connector.resources.enter_context(connector.connection_factory(url, options))
            url = true_url(sink, url, there)
            if to is None and not {url, there.canonical_url}.isdisjoint(places):
                continue
            self._check_elsewhere("forward", url, there)
            refuse_destination(url, there, connector.url, self._broker)
            yield sink, url, there

    def _places(self) -> Sequence[str]:
        return places_of(self._broker, self._connector.url, direct=self._direct)


def places_of(broker: Broker, url: str, *, direct: bool) -> Sequence[str]:
    """Return the canonical URLs of the places that are read: a relative path means another in another folder.

    Args:
        broker: opened.
        url: that it was opened with.
        direct: the place itself is meant, and not a destination's own place.

    Raises:
        BrokerError, ConfigurationError
    """
    return (broker.canonical_url or url,) if direct else broker.dead_letter_places()


def _depth(broker: Broker) -> int:
    with broker.admin() as admin:
        return admin.depth()


def _unsent(batch: LetterBatch, earlier: Mapping[str, str]) -> Sequence[int]:
    """Return the letters of a batch that no earlier run has sent."""
    if not earlier:
        return range(len(batch))
    return [
        index
        for index, position in enumerate(batch.position.values)
        if position not in earlier or earlier[position] != digest(batch.letter(index))
    ]


def _maybe_edited(batch: LetterBatch, index: int, unsure: Mapping[str, tuple[str, str]]) -> str | None:
    """Return why a letter is not mended that may have been sent, edited by a patch; None where it was not."""
    said, form = unsure.get(batch.position.values[index], ("", "")) if unsure else ("", "")
    return EDITED if form and said == digest(batch.letter(index)) else None


def _given(spec: DeliverySpec | None) -> DeliverySpec:
    """Return the spec for sending letters: one that fails permanently stays in place."""
    return replace(spec or _SPEC, dead_letter_sink=(), allow_skip=True, log_enable=False, **_TOLERANT)


def dead_letters(
    url: str,
    *,
    sink: str | None = None,
    options: Mapping[str, str] | None = None,
    connection_factory: ConnectionFactory | None = None,
    key: str | None = None,
    triage: Path | None = None,
) -> DeadLetterQueue:
    """Return the dead letters of a destination.

    Args:
        url: the destination; its native dead letter queue is read.
        sink: URL of the sink that its letters went to, where that was not the native queue.
        options: client options, with their plugin's prefix; also those of the plugins that letters are sent to.
        connection_factory: opens a connection to a broker; by default `connected`.
        key: references of the keys that letters were signed with (`letterKey`), separated by commas. Of a letter that
            none of them has signed, only the broker's own report is believed; the target of a signed letter is
            followed.
        triage: the file that says which letters are parked; None: that of the place, beside its journal.

    Raises:
        ConfigurationError: the URL, the place or the key cannot be used.
        Unsupported: the broker does not let letters be read.
        BrokerError: the broker was not reached, or refuses.
    """
    keys = [signing.key(each) for each in signing.references(key)]
    with Resources() as resources:
        connector = Connector(
            url=sink or url,
            spec=_SPEC,
            options=own_options(sink or url, options or {}),
            bounds=Bounds(),
            clock=SystemClock(),
            connection_factory=connection_factory or connected,
            resources=resources,
        )
        broker = connector.connect()
        # A destination without its own dead letter queue is itself such a queue.
        direct = sink is not None or not broker.capabilities.dead_letter
        letters = broker.dead_letters(direct=direct)
        resources.callback(letters.close)
        kept = resources.pop_all()
        dlq = replace(connector, resources=kept)
        home = None if sink is None else url
        return DeadLetterQueue(dlq, broker, letters, options or {}, direct=direct, home=home, keys=keys, triage=triage)
    raise AssertionError("unreachable")
