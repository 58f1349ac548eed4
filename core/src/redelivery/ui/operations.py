"""What changes something: redrive, edit, park, remove. Each is a form, allowed by `--allow`; and export and history.

An operation is counted first (`plans`), then confirmed with its count, then carried out in this process (`jobs`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from redelivery.contract.context import ErrorContext
from redelivery.deadletters.audit import AuditLog
from redelivery.deadletters.groups import cause, check_fingerprint
from redelivery.deadletters.queue import DeadLetterQueue
from redelivery.deadletters.redrive import digest
from redelivery.deadletters.triage import key_of
from redelivery.deadletters.trust import context_of
from redelivery.errors import ConfigurationError, JournalError
from redelivery.policy.waves import plan_shown
from redelivery.ui.editing import body_of, patch_of
from redelivery.ui.exporting import Export
from redelivery.ui.jobs import MOST_REMOVED
from redelivery.ui.orders import ACTIONS, Count, Order, chosen
from redelivery.ui.page import PATIENCE, Form, NotFound, Page, Shelf, link, onward, selection
from redelivery.ui.plans import Plan
from redelivery.ui.views import letter_link, position_of, the_letter

#: Letters of which a group's name is looked for, and lines of the history.
_LOOKED_AT: Final = 500
_LINES: Final = 200
_NOTE: Final = 4000
_CONDITIONS: Final = 50
_WAVES: Final = ("waves", "stop_at", "wave_wait")
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)


def routes(page: Page) -> list[Route]:
    """Return the routes: of a change `Route(path, page.action(PERMISSION, view), methods=["POST"])`."""
    place, letter = "/places/{place}", "/places/{place}/letters/{at}/{digest}"
    plans = [
        Route(f"{place}/plan/{action}", page.action(permission, _planning(action)), methods=["POST"])
        for action, permission in ACTIONS.items()
    ]
    return [
        *plans,
        Route(f"{place}/plans/{{plan}}", page.view(_plan)),
        Route(f"{place}/plans/{{plan}}/confirm", page.action(None, _confirm), methods=["POST"]),
        Route(f"{place}/operation", page.view(_operation)),
        Route(f"{place}/operation/cancel", page.action(None, _cancel), methods=["POST"]),
        Route(f"{place}/operation/resume", page.action(None, _resume), methods=["POST"]),
        Route(f"{letter}/edit", page.view(_edit)),
        Route(f"{letter}/edited", page.action("edit", _edited), methods=["POST"]),
        Route(f"{place}/triage", page.action("park", _triage), methods=["POST"]),
        Route(f"{place}/export", page.action(None, _export), methods=["POST"]),
        Route(f"{place}/history", page.view(_history)),
    ]


def end(page: Page) -> None:
    """End operations with the page: what is in flight is settled."""
    for shelf in page.shelves.values():
        shelf.job.leave()


# --- counted, confirmed, carried out --------------------------------------------------------------------------------


def _planning(action: str) -> Any:
    async def view(page: Page, request: Request) -> Response:
        shelf, form = page.shelf(request), Form.of(request)
        where, letters = _meant(form) if action != "purge" else ([], {})
        if action == "remove" and not where and not letters:
            raise ConfigurationError("remove: choose letters or give a condition; purge removes all")
        order = Order(
            action=action,
            where=where,
            letters=letters,
            to=form.one("to") or None if action in {"redrive", "edit"} else None,
            limit=_whole(form, "limit") if action != "purge" else None,
            rate=_positive(form, "rate"),
            **{name: form.one(name).strip() if action in {"redrive", "edit"} else "" for name in _WAVES},
            patch=form.one("patch") if action == "edit" else "",
        )
        if action == "edit" and not order.patch.strip():
            raise ConfigurationError("edit: write a patch, as JSON; a single letter has a form for it on its page")
        return _planned(page, shelf, order)

    return view


def _planned(page: Page, shelf: Shelf, order: Order) -> Response:
    order.check()
    to = None if order.to is None else _target(page, order.to).source
    plan = shelf.plans.add(Plan(order, shelf.source, to, shelf.slots, page.mask))
    return onward(link("places", shelf.source.slug, "plans", plan.name))


def _target(page: Page, slug: str) -> Shelf:
    """Return the place that letters are sent to: one of the page's own, so that no URL is typed."""
    found = page.shelves.get(slug)
    if found is None:
        raise ConfigurationError("letters go to a place of this page; start it with that place too")
    return found


async def _plan(page: Page, request: Request) -> Response:
    shelf, plan = _known(page, request)
    state = plan.counting.state
    waves = plan.order.in_waves()
    sizes = "" if waves is None or state.result is None else plan_shown(waves.plan(state.result.count))
    return page.render(
        "plan.html",
        shelf=shelf,
        plan=plan,
        order=plan.order,
        waves=waves,
        sizes=sizes or plan.order.waves,
        most_removed=MOST_REMOVED,
        state=state,
        running=state.is_running,
        job=shelf.job.state,
    )


async def _confirm(page: Page, request: Request) -> Response:
    shelf, plan = _known(page, request)
    form = Form.of(request)
    if not page.may(plan.order.permission):
        raise NotFound("This page was started without it.")
    found: Count | None = plan.counting.state.result
    if found is None or plan.counting.state.is_running:
        raise JournalError("the letters are still being counted; confirm when the count is there")
    if form.one("count") != str(found.count) or not found.count:
        raise JournalError("this is not what was counted; look again")
    if not plan.order.sends and form.one("typed").strip() != shelf.source.name:
        raise ConfigurationError(f"nothing was removed: to confirm, type the place's name: {shelf.source.name}")
    if plan.take():
        try:
            await shelf.lane.call(lambda: shelf.job.start(plan.order, found, plan.to, page.settings.who), PATIENCE)
        except BaseException:
            plan.give_back()
            raise
    return onward(link("places", shelf.source.slug, "operation"))


def _known(page: Page, request: Request) -> tuple[Shelf, Plan]:
    shelf = page.shelf(request)
    plan = shelf.plans.get(request.path_params["plan"])
    if plan is None:
        raise NotFound("This count is of an earlier start of the page, or too old: count again.")
    return shelf, plan


async def _operation(page: Page, request: Request) -> Response:
    shelf = page.shelf(request)
    state = await shelf.lane.call(lambda: shelf.job.state, PATIENCE)
    return page.render("operation.html", shelf=shelf, job=state, running=state is not None and state.is_running)


async def _cancel(page: Page, request: Request) -> Response:
    shelf = page.shelf(request)
    state = shelf.job.state
    if state is not None and page.may(state.order.permission) and Form.of(request).one("operation") == state.name:
        shelf.job.cancel()
    return onward(link("places", shelf.source.slug, "operation"))


async def _resume(page: Page, request: Request) -> Response:
    shelf = page.shelf(request)
    state = shelf.job.state
    if state is None or not state.can_resume or Form.of(request).one("operation") != state.name:
        return onward(link("places", shelf.source.slug, "operation"))
    if not page.may(state.order.permission):
        raise ConfigurationError(f"this page was started without it: redelivery ui --allow {state.order.permission}")
    to = None if state.order.to is None else _target(page, state.order.to).source
    if (to.shown_destination if to else "") != state.to:
        raise ConfigurationError(f"it went to {state.to}, and that place has another URL now: count again")
    found = Count(count=state.count, targets=state.report.get("targets", {}), marks=state.marks)
    await shelf.lane.call(lambda: shelf.job.start(state.order, found, to, page.settings.who, resumes=state), PATIENCE)
    return onward(link("places", shelf.source.slug, "operation"))


# --- edit ----------------------------------------------------------------------------------------------------------


async def _edit(page: Page, request: Request) -> Response:
    shelf = page.shelf(request)
    letter = await the_letter(shelf, position_of(request.path_params["at"]), request.path_params["digest"])
    return page.render(
        "edit.html",
        shelf=shelf,
        letter=letter,
        here=letter_link(shelf.source.slug, letter),
        body=body_of(letter, page.mask),
    )


async def _edited(page: Page, request: Request) -> Response:
    shelf, form = page.shelf(request), Form.of(request)
    letter = await the_letter(shelf, position_of(request.path_params["at"]), request.path_params["digest"])
    patch = patch_of(letter, dict(form.pairs), page.mask)
    order = Order(
        action="edit", letters={letter.position: digest(letter)}, to=form.one("to") or None, limit=1, patch=patch
    )
    return _planned(page, shelf, order)


# --- triage, export, history ----------------------------------------------------------------------------------------


async def _triage(page: Page, request: Request) -> Response:
    shelf, form = page.shelf(request), Form.of(request)
    action, group, note = form.one("action"), form.one("group"), form.one("note").strip()[:_NOTE]
    if action not in {"park", "unpark", "note"}:
        raise ConfigurationError("triage: park, unpark or note")
    if action == "note" and not note:
        raise ConfigurationError("note: write something")
    who = page.settings.who
    if group:
        check_fingerprint(group)
        name = await shelf.lane.call(lambda: shelf.letters(lambda letters: _name(letters, group)), PATIENCE)
        keys, back = {group: name}, link("places", shelf.source.slug, "letters", where=f"group={group}")
    else:
        at, _, expected = form.one("pick").partition(".")
        letter = await the_letter(shelf, position_of(at), expected)
        context = letter.context or ErrorContext()
        keys = {key_of(letter): letter.message.id or context.message_id or letter.position}
        back = letter_link(shelf.source.slug, letter)

    def change() -> None:
        with shelf.source.open() as dlq:
            _change(dlq, action, "group" if group else "letter", keys, note, who)

    await shelf.lane.call(change, PATIENCE)
    return onward(back)


def _change(dlq: DeadLetterQueue, action: str, what: Any, keys: Mapping[str, str], note: str, who: str) -> None:
    triage = dlq.triage
    change = {"park": triage.park, "unpark": triage.unpark, "note": triage.note}[action]
    count = change(what, list(keys), note, who=who, names=list(keys.values()))
    meant = " ".join(f"{what}={key if what == 'group' else name}" for key, name in keys.items())
    AuditLog().record(action, dlq.place, meant, details={"count": count, "note": note}, who=who)


def _name(letters: Any, group: str) -> str:
    """Return what people call a group: the normalised message of one of its letters."""
    found = letters.scan(lambda batch: batch.letter(0), selection([f"group={group}"]))
    try:
        letter = next(iter(found), None)
    finally:
        found.close()
    if letter is None:
        return ""
    return cause(context_of(letter)).shown().message


async def _export(page: Page, request: Request) -> Response:
    shelf, form = page.shelf(request), Form.of(request)
    where, letters = _meant(form)
    order = Order(action="redrive", where=where, letters=letters)
    export = Export(shelf.letters, chosen(letters) if letters else selection(where), page.mask)
    try:
        first = await export.first(PATIENCE)
        who = page.settings.who
        await shelf.lane.call(lambda: AuditLog().record("export", shelf.source.shown, order.shown, who=who), PATIENCE)
    except BaseException:
        export.end()
        raise
    return StreamingResponse(
        export.rest(first),
        media_type="application/jsonl",
        headers={"content-disposition": f'attachment; filename="{shelf.source.slug}-letters.jsonl"'},
    )


async def _history(page: Page, request: Request) -> Response:
    shelf = page.shelf(request)

    def read() -> Any:
        with shelf.source.open() as dlq:
            places = {dlq.place, shelf.source.shown}
            states = dlq.triage.states()[:_LINES]
        entries = [each for place in sorted(places) for each in AuditLog().entries(place, _LINES)]
        return states, sorted(entries, key=lambda each: -each.at_ms)[:_LINES]

    states, entries = await shelf.lane.call(read, PATIENCE)
    return page.render("history.html", shelf=shelf, states=states, entries=entries)


# --- forms ---------------------------------------------------------------------------------------------------------


def _meant(form: Form) -> tuple[list[str], dict[str, str]]:
    """Return the conditions of a form, and the letters that were chosen: digests by position."""
    where = [each for each in form.all("where") if each.strip()]
    if len(where) > _CONDITIONS:
        raise ConfigurationError(f"a selection has at most {_CONDITIONS} conditions")
    letters = {}
    for each in form.all("pick"):
        at, _, expected = each.partition(".")
        letters[position_of(at)] = expected
    return where, letters


def _whole(form: Form, name: str) -> int | None:
    text = form.one(name).strip().replace(",", "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not int(text[:12]) > 0:
        raise ConfigurationError(f"{name}: a whole number above 0, not {text[:20]!r}")
    return int(text[:12])


def _positive(form: Form, name: str) -> float | None:
    text = form.one(name).strip()
    if not text:
        return None
    if _NUMBER.fullmatch(text) is None or not float(text):
        raise ConfigurationError(f"{name}: a number above 0, not {text[:20]!r}")
    return float(text)
