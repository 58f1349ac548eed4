"""Mark tests as statements of the contract: by capability, and protected from silent replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

import pytest

from redelivery_conformance.harness import Harness

T = TypeVar("T", bound=Callable[..., Any])

#: The pytest plugin registers these.
MARKERS = (
    "broker_has(*capabilities): the statement is about a broker that has all of these capabilities",
    "broker_lacks(*capabilities): the statement is about a broker that has none of these capabilities",
    "spark: the statement starts Spark (needs pyspark and Java)",
    "local: the statement asks the broker nothing, so it runs once for a plugin, not on each kind of its runtimes",
)


def broker_has(*capabilities: str) -> Callable[[T], T]:
    """Mark a statement about brokers that have all of these capabilities."""
    mark: Callable[[T], T] = pytest.mark.broker_has(*capabilities)
    return mark


def broker_lacks(*capabilities: str) -> Callable[[T], T]:
    """Mark a statement about brokers that have none of these capabilities."""
    mark: Callable[[T], T] = pytest.mark.broker_lacks(*capabilities)
    return mark


class Statements:
    """Base of every class of statements. A subclass may add tests, and may replace a test only with a strict xfail.

    Attributes:
        broker: the plugin's name, or a harness; None: the brokers that the command line names, else all installed ones.
    """

    broker: ClassVar[str | Harness | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        standard = {name for base in cls.__mro__[1:] for name in vars(base) if name.startswith("test_")}
        for name in sorted(standard & vars(cls).keys()):
            excuses = _xfails(vars(cls)[name])
            if not excuses or not all(map(_is_excused, excuses)):
                raise TypeError(
                    f"{cls.__name__}.{name} replaces a statement of the contract; if the broker cannot, its "
                    'capabilities say so; a known fault is marked @pytest.mark.xfail(strict=True, reason="...")'
                )


def quiet_marks(items: Iterable[pytest.Item]) -> list[str]:
    """Return one sentence per statement whose mark would prevent it from failing."""
    return [
        f"{item.nodeid} is marked {mark.name}: a statement may only be marked xfail(strict=True, reason=...)"
        for item in items
        if issubclass(getattr(item, "cls", None) or object, Statements)
        for mark in item.iter_markers()
        if mark.name in {"skip", "skipif"} or (mark.name == "xfail" and not _is_excused(mark))
    ]


def _xfails(test: Any) -> list[pytest.Mark]:
    return [mark for mark in getattr(test, "pytestmark", []) if mark.name == "xfail"]


def _is_excused(mark: pytest.Mark) -> bool:
    return mark.kwargs.get("strict") is True and bool(mark.kwargs.get("reason")) and mark.kwargs.get("run", True)
