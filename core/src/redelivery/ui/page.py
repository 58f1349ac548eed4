"""What all views share: the places with what is known of them, templates, the forms of an operation, and errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from redelivery import provisioning
from redelivery.base.rendering import harmless
from redelivery.contract.broker import Capabilities
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.summary import Summary, summarise
from redelivery.deadletters.triage import this_user
from redelivery.errors import ConfigurationError, JournalError, RedeliveryError
from redelivery.formats.specs import files
from redelivery.ui import showing
from redelivery.ui.background import Background, Run, State
from redelivery.ui.jobs import Job
from redelivery.ui.plans import Plans
from redelivery.ui.reading import Held, Letters, hold, triage_of
from redelivery.ui.safety import CSRF, FORM, SESSION, Session, one_line
from redelivery.ui.showing import Mask
from redelivery.ui.source import Source, takes
from redelivery.ui.threads import Lane, TooSlow

#: What `--allow` can name.
PERMISSIONS: Final = ("redrive", "edit", "park", "purge")
#: Seconds that one request waits for a place, and that a look in the background takes at most.
PATIENCE: Final = 20.0
LOOK: Final = 300.0
#: Looks in the background at a time, over all places.
_LOOKS: Final = 4
#: Conditions of a selection.
_CONDITIONS: Final = 50

View = Callable[["Page", Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that a page was started with.

    Attributes:
        sources: the places.
        allow: of `PERMISSIONS`; without any the page only shows.
        masks: regular expressions of what is hidden.
        who: the name for notes and the audit log.
    """

    sources: Sequence[Source]
    allow: frozenset[str] = frozenset()
    masks: Sequence[str] = ()
    who: str = field(default_factory=this_user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of a look at a place.

    Attributes:
        summary: counts and groups.
        held: the letters themselves, where looking takes.
        partial: why these are not all letters; empty where they are.
    """

    summary: Summary
    held: Held | None = None
    partial: str = ""


class Shelf:
    """A place on the page: how it is opened, and what is known of it.

    Args:
        source: the place.
        slots: shared by all: looks at a time.
    """

    def __init__(self, source: Source, slots: threading.BoundedSemaphore) -> None:
        self.source = source
        self.slots = slots
        self.lane = Lane(source.name)
        self.plans = Plans()
        self.job = Job(source, self._changed)
        background = partial(Background, seconds=LOOK, slots=slots)
        self.opened: Background[Capabilities] = background(f"{source.name}-open", self._capabilities)
        self.looks: Background[Look] = background(f"{source.name}-look", self._look)
        self.depth: Background[int | None] = background(f"{source.name}-depth", self._depth)
        self.drift: Background[Sequence[str]] = background(f"{source.name}-drift", self._drift)

    def begin(self) -> None:
        """Learn what there is to learn without taking a letter; then look, where looking does not take."""
        self.opened.begin()
        if self.source.spec is not None:
            self.drift.begin()

    @property
    def can(self) -> Capabilities | None:
        """The capabilities of the place's broker; None: not known yet, or never."""
        return self.opened.state.result

    @property
    def takes(self) -> bool:
        """Whether looking takes letters from others here; also where it is not known."""
        can = self.can
        return can is None or takes(can)

    def letters(self, work: Callable[[Letters], Any]) -> Any:
        """Call a function with the letters: those that were kept, where looking takes, else the place itself.

        Raises:
            ConfigurationError: looking takes here, and "look" was not pressed yet.
            BrokerError
        """
        if self.takes:
            look = self.looks.state.result
            if look is None or look.held is None:
                raise ConfigurationError(f"{self.source.name}: nobody has looked at it yet; {TAKING}")
            return work(look.held)
        with self.source.open() as dlq:
            return work(dlq)

    def _changed(self) -> None:
        """Look again after an operation, where looking does not take."""
        (self.depth if self.takes else self.looks).begin()

    def _capabilities(self, _run: Run) -> Capabilities:
        can = self.source.capabilities()
        if not can.browse:
            raise ConfigurationError(f"{self.source.shown}: letters cannot be read here")
        (self.depth if takes(can) else self.looks).begin()
        return can

    def _depth(self, _run: Run) -> int | None:
        with self.source.open() as dlq:
            return dlq.depth()

    def _look(self, run: Run) -> Look:
        with self.source.open() as dlq:
            if not dlq.looking_takes:
                summary = summarise(dlq, triage=triage_of(dlq), on_progress=run.progress, stop=run.stop)
                return Look(summary=summary, partial="the time was over before all were counted" if run.stop() else "")
            held = hold(dlq, run.stop, run.progress)
        partial = "" if held.complete else f"the oldest {len(held):,} of them; more are there"
        with ExitStack() as opened:
            triage = None if held.triage is None else opened.enter_context(held.triage())
            return Look(summary=summarise(held.as_queue(), triage=triage), held=held, partial=partial)

    def _drift(self, _run: Run) -> Sequence[str]:
        source = self.source
        assert source.spec is not None  # noqa: S101 - it is begun only with one
        found = provisioning.plan(source.destination(), files.read(source.spec), options=source.options)
        lines = []
        for item in found.plan.objects:
            if item.action == "create":
                lines.append(f"missing: {item.kind} {item.name}")
            lines += [
                f"{item.kind} {item.name}: {each.attribute} is {each.found}, and should be {each.wanted}"
                for each in item.differences
            ]
        return lines


TAKING: Final = (
    "looking at letters here hides them from other readers for some seconds, and counts as a delivery of each"
)


class Page:
    """The page: its places, its templates, and what its operator may do.

    Attributes:
        settings: what it was started with.
        session: whose token its forms hold.
        mask: hides what the operator wants hidden.
        shelves: the places by their names in URLs.
    """

    def __init__(self, settings: Settings, session: Session) -> None:
        unknown = settings.allow.difference(PERMISSIONS)
        if unknown:
            raise ConfigurationError(f"--allow {min(unknown)!r}: known are {', '.join(PERMISSIONS)}")
        self.settings = settings
        self.session = session
        self.mask = Mask(settings.masks)
        slots = threading.BoundedSemaphore(_LOOKS)
        self.shelves: Mapping[str, Shelf] = {each.slug: Shelf(each, slots) for each in settings.sources}
        self._templates = Environment(
            loader=PackageLoader("redelivery.ui"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalized,
        )
        self._templates.globals |= {
            "page": self,
            "csrf_field": Markup('<input type="hidden" name="{}" value="{}">').format(CSRF, session.csrf),
            "link": link,
            "can": self.may,
            "age": lambda since_ms: showing.age(since_ms, time.time_ns() // 1_000_000),
            "moment": showing.moment,
            "bars": showing.bars,
            "cut": lambda text, most: showing.cut(self.mask(text), most),  # half of what is hidden is not shown
            "masked": self.mask,
            "TAKING": TAKING,
        }
        self._templates.filters["n"] = "{:,}".format

    def may(self, permission: str) -> bool:
        """Whether the operator allowed something (`PERMISSIONS`)."""
        return permission in self.settings.allow

    def shelf(self, request: Request) -> Shelf:
        """Return the place that a URL names. Raises NotFound."""
        found = self.shelves.get(request.path_params["place"])
        if found is None:
            raise NotFound("This page has no such place.")
        return found

    def render(self, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a page. Every text is escaped, and made harmless."""
        return HTMLResponse(self._templates.get_template(template).render(**context), status)

    def error(self, status: int, line: str) -> HTMLResponse:
        """Return a page that says what is wrong, in one line."""
        title = HTTPStatus(status).phrase
        return self.render("error.html", status=status, title=title, line=line)

    def view(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint for a page that changes nothing; our errors become one line."""

        async def endpoint(request: Request) -> Response:
            try:
                return await view(self, request)
            except RedeliveryError as error:
                return self.error(status_of(error), one_line(error))

        return endpoint

    def action(self, permission: str | None, view: View) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint for a form that was sent here; refused unless the operator allowed it.

        `safety` has checked where it comes from, and its token.

        Args:
            permission: of `PERMISSIONS`; None: allowed always.
            view: what it does. It answers with a redirect (`onward`), so that a reload does not repeat it.
        """

        async def endpoint(request: Request) -> Response:
            if permission is not None and not self.may(permission):
                line = f"This page was started without it; start it with: redelivery ui --allow {permission}"
                return self.error(403, line)
            return await self.view(view)(request)

        return endpoint


@dataclass(frozen=True, slots=True)
class Form:
    """The checked fields of a form, without its token."""

    pairs: Sequence[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request) -> Form:
        """Return the form of a request that `Safety` has checked."""
        return cls(request.scope[FORM])

    def one(self, name: str, default: str = "") -> str:
        """Return the first value of a field."""
        return next((value for key, value in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for key, value in self.pairs if key == name]


class NotFound(RedeliveryError):
    """The page has no such thing."""


def status_of(error: RedeliveryError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, TooSlow):
        return 504
    if isinstance(error, JournalError):
        return 409
    return 400 if isinstance(error, ConfigurationError) else 502


def link(*parts: str, **query: str | int | Sequence[str] | None) -> str:
    """Return a path of the page: its parts and its query are encoded; a query of None is left out."""
    path = "/" + "/".join(quote(each, safe="") for each in parts)
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def onward(path: str) -> Response:
    """Return the answer to a form: the page to load next."""
    return Response(status_code=303, headers={"location": path})


def conditions(request: Request) -> list[str]:
    """Return the conditions (`--where`) in a page's URL. Raises ConfigurationError: too many."""
    found = [each for each in request.query_params.getlist("where") if each.strip()]
    if len(found) > _CONDITIONS:
        raise ConfigurationError(f"a selection has at most {_CONDITIONS} conditions")
    return found


def selection(texts: Collection[str]) -> Selection:
    """Return the selection of these conditions. Raises ConfigurationError."""
    return Selection.parse(*texts)


def number(text: str | None, default: int, most: int) -> int:
    """Return a whole number of a URL, within bounds."""
    if text is None or not text.isascii() or not text.isdigit():
        return default
    return min(int(text[:12]), most)


def _finalized(value: Any) -> Any:
    """Return what a template shows, without characters that drive or reorder what is seen."""
    return harmless(value, keep="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


__all__ = [
    "LOOK",
    "PATIENCE",
    "PERMISSIONS",
    "SESSION",
    "Form",
    "Look",
    "NotFound",
    "Page",
    "Settings",
    "Shelf",
    "State",
    "conditions",
    "link",
    "number",
    "onward",
    "selection",
]
