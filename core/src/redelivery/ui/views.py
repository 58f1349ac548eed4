"""The pages that only show: all places, the groups of a place, letters of a selection, one letter."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from redelivery import registry
from redelivery.base.rendering import harmless
from redelivery.contract.broker import Letter
from redelivery.contract.context import ErrorContext
from redelivery.contract.hooks import Decoder
from redelivery.deadletters.groups import fingerprint
from redelivery.deadletters.redrive import digest
from redelivery.deadletters.selection import dead_since_ms
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.ui import showing
from redelivery.ui.page import (
    PATIENCE,
    NotFound,
    Page,
    Shelf,
    conditions,
    link,
    number,
    onward,
    selection,
)
from redelivery.ui.reading import Letters, one, window
from redelivery.ui.safety import one_line
from redelivery.ui.showing import Mask
from redelivery.ui.threads import Lane, TooSlow

#: Letters on a page.
ROWS: Final = 50
#: Letters that a page can begin behind: to see more, give a condition.
_DEEPEST: Final = 1_000_000
#: Seconds that reading a page of letters takes at most, and where more are asked for.
_READING: Final = 8
_LONGEST: Final = 60
#: Seconds that a decoder has, and characters of its text that are shown.
_DECODING: Final = 2.0
_DECODED: Final = 256 * 1024
#: Fields of a context with their own line, and the title of it.
_TITLES: Final = {"last_failure_ms": "last failure", "first_failure_ms": "first failure"}

_decoders: Final = Lane("the decoder", 4)


def routes(page: Page) -> list[Route]:
    """Return the routes of the pages that only show."""
    return [
        Route("/", page.view(_places)),
        Route("/places/{place}", page.view(_place)),
        Route("/places/{place}/card", page.view(_card)),
        Route("/places/{place}/letters", page.view(_letters)),
        Route("/places/{place}/letters/{at}/{digest}", page.view(_letter)),
        Route("/places/{place}/look", page.action(None, _look), methods=["POST"]),
    ]


async def _places(page: Page, _request: Request) -> Response:
    shelves = list(page.shelves.values())
    return page.render("places.html", shelves=shelves, running=any(map(is_running, shelves)), alone=False)


async def _card(page: Page, request: Request) -> Response:
    """The card of a place, again and again while something is found out; then its whole page is loaded again."""
    shelf, alone = page.shelf(request), "alone" in request.query_params
    response = page.render("card.html", shelf=shelf, alone=alone)
    if alone and not is_running(shelf):
        response.headers["HX-Refresh"] = "true"
    return response


async def _place(page: Page, request: Request) -> Response:
    shelf = page.shelf(request)
    return page.render("place.html", shelf=shelf, running=is_running(shelf), alone=True)


async def _look(page: Page, request: Request) -> Response:
    """Look at a place now: by a form, as it takes letters at some brokers."""
    shelf = page.shelf(request)
    (shelf.opened if shelf.can is None else shelf.looks).begin()
    if shelf.source.spec is not None:
        shelf.drift.begin()
    return onward(link("places", shelf.source.slug))


def is_running(shelf: Shelf) -> bool:
    """Whether something is found out about a place at this moment."""
    return any(each.state.is_running for each in (shelf.opened, shelf.depth, shelf.looks, shelf.drift))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A letter in a list: its link, and its line. Texts are masked."""

    href: str
    pick: str
    name: str
    since_ms: int | None
    kind: str
    label: str
    reason: str
    attempts: int | None
    hops: int
    size: int
    maybe_delivered: bool
    parked: bool
    group: str


def row(letter: Letter, parked: bool, *, slug: str, mask: Mask) -> Row:  # noqa: FBT001 - as `window` calls it
    """Return the line of a letter with its whole context."""
    context = letter.context or ErrorContext()
    return Row(
        href=letter_link(slug, letter),
        pick=pick_of(letter),
        name=mask(showing.cut(letter.message.id or context.message_id or letter.position, 80)),
        since_ms=dead_since_ms(letter),
        kind=showing.cut(context.kind or "-", 20),
        label=mask(showing.cut(context.label, 60)),
        reason=showing.cut(mask(context.reason), 300),
        attempts=context.attempts_total,
        hops=context.hops,
        size=letter.message.size,
        maybe_delivered=context.maybe_delivered,
        parked=parked,
        group=fingerprint(context),
    )


def letter_link(slug: str, letter: Letter) -> str:
    """Return the path of a letter's page: its position, and what tells it from a later one there."""
    return link("places", slug, "letters", *pick_of(letter).split("."))


def pick_of(letter: Letter) -> str:
    """Return what names a letter in a form: its position and its digest, as in its path."""
    at = base64.urlsafe_b64encode(letter.position.encode("utf-8", "surrogatepass")).decode().rstrip("=")
    return f"{at or '-'}.{digest(letter)}"


def position_of(at: str) -> str:
    """Return the position in a letter's path. Raises NotFound."""
    try:
        padded = "" if at == "-" else at + "=" * (-len(at) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        raise NotFound("This is not the address of a letter.") from None


async def _letters(page: Page, request: Request) -> Response:
    shelf = page.shelf(request)
    where = conditions(request)
    first = number(request.query_params.get("first"), 0, _DEEPEST)
    seconds = number(request.query_params.get("seconds"), _READING, _LONGEST)
    shown: dict[str, Any] = {"shelf": shelf, "where": where, "first": first, "seconds": seconds, "rows_most": ROWS}
    if shelf.takes and shelf.looks.state.result is None:
        return page.render("letters.html", window=None, error="", **shown)
    make = partial(row, slug=shelf.source.slug, mask=page.mask)
    try:
        wanted = selection(where)

        def read(letters: Letters) -> Any:
            return window(letters, make, wanted, first=first, most=ROWS, seconds=seconds)

        found = await shelf.lane.call(lambda: shelf.letters(read), max(PATIENCE, seconds + 10))
    except RedeliveryError as error:
        status = 400 if isinstance(error, ConfigurationError) else 502
        return page.render("letters.html", status=status, window=None, error=one_line(error), **shown)
    return page.render("letters.html", window=found, error="", **shown)


async def _letter(page: Page, request: Request) -> Response:
    shelf = page.shelf(request)
    position, expected = position_of(request.path_params["at"]), request.path_params["digest"]
    if shelf.takes and shelf.looks.state.result is None:
        return page.render(
            "letters.html", window=None, error="", shelf=shelf, where=[], first=0, seconds=0, rows_most=0
        )
    letter = await the_letter(shelf, position, expected)
    context = letter.context or ErrorContext()
    body, name, names = await _body(page, letter, request.query_params.get("as"))
    return page.render(
        "letter.html",
        shelf=shelf,
        letter=letter,
        context=context,
        here=letter_link(shelf.source.slug, letter),
        pick=pick_of(letter),
        group=fingerprint(context),
        facts=_facts(letter, context, page.mask),
        headers=[(harmless(page.mask(key)), showing.short(value, page.mask)) for key, value in letter.message.headers],
        key=None if letter.message.key is None else showing.short(letter.message.key, page.mask),
        body=body,
        form=name,
        forms=names,
        size=len(letter.message.value or b""),
        is_cut=len(letter.message.value or b"") > (showing.SHOWN_HEX if name == "hex" else showing.SHOWN),
    )


async def the_letter(shelf: Shelf, position: str, expected: str) -> Letter:
    """Return the letter at a position of a place.

    Args:
        shelf: the place.
        position: of the letter.
        expected: its digest.

    Raises:
        NotFound: it is not there any more, or another letter is there now.
        BrokerError, TooSlow
    """
    found, same = await shelf.lane.call(
        lambda: shelf.letters(lambda letters: one(letters, position, expected)), PATIENCE
    )
    if found is None:
        raise NotFound("No such letter: it was sent back or removed, or it is of another place.")
    if not same:
        raise NotFound("Another letter is at this position now: the one that the link meant is gone.")
    letter: Letter = found
    return letter


async def _body(page: Page, letter: Letter, wanted: str | None) -> tuple[str, str, list[str]]:
    """Return the text of a body in the form that was asked for, the form's name, and all names."""
    decoders = registry.installed().decoders
    own = dict(showing.forms(letter.message.value, page.mask))
    names = [*own, *(sorted(decoders) if letter.message.value is not None else ())]
    if wanted is not None and wanted in decoders and letter.message.value is not None:
        return page.mask(await decoded(decoders[wanted], letter)), wanted, names
    if not own:
        return "(null)", "", names
    name = wanted if wanted is not None and wanted in own else next(iter(own))
    return own[name], name, names


async def decoded(decoder: Decoder, letter: Letter) -> str:
    """Return what a plugin makes of a body; whatever is wrong with it is one line."""
    try:
        text = await _decoders.call(lambda: decoder.decode(letter.message), _DECODING)
    except TooSlow as error:
        return f"({decoder.name}: {one_line(error)})"
    except Exception as error:  # noqa: BLE001 - a plugin's own, about a message that anyone may have written
        return f"({decoder.name} cannot decode it: {type(error).__name__}: {showing.cut(one_line(error), 300)})"
    if not isinstance(text, str):
        return f"({decoder.name}: the body is not in this form)"
    return text if len(text) <= _DECODED else f"{text[:_DECODED]}\n({len(text) - _DECODED:,} more characters)"


def _facts(letter: Letter, context: ErrorContext, mask: Mask) -> list[tuple[str, str]]:
    """Return what is known of a letter, a line each: name and text."""
    found: list[tuple[str, Any]] = [("position", letter.position), ("id", letter.message.id)]
    found += [("destination of the message", letter.message.destination)]
    found += [("created", letter.message.timestamp_ms and showing.moment(letter.message.timestamp_ms))]
    found += [("dead since", letter.dead_lettered_ms and showing.moment(letter.dead_lettered_ms))]
    found += [("signed", None if letter.signed is None else "yes" if letter.signed else "no")]
    for each in fields(ErrorContext):
        value = getattr(context, each.name)
        if each.name in {"extra", "reason", "kind", "stacktrace"} or value in (None, "", False):
            continue
        if each.name.endswith("_ms"):
            value = showing.moment(value)
        found.append((_TITLES.get(each.name, each.name.replace("_", " ")), value))
    found += [(f"extra: {showing.cut(name, 60)}", text) for name, text in list(context.extra.items())[:50]]
    found += [(f"column: {showing.cut(name, 60)}", value) for name, value in list(letter.message.extra.items())[:50]]
    return [(mask(name), mask(str(value))[: showing.SHOWN_HEADER]) for name, value in found if value is not None]
