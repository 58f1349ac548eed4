"""The kit's first page lists its parts."""

import pkgutil
import re

from redelivery import kit


def test_every_part_is_listed_with_what_it_is_for() -> None:
    listed = re.findall(r"(?m)^`(\w+)` +(\S.*)$", kit.__doc__ or "")
    assert [name for name, _ in listed]
    assert {name for name, _ in listed} == {each.name for each in pkgutil.iter_modules(kit.__path__)}
