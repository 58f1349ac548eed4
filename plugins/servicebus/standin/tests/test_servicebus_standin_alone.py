"""The stand-in is a distribution by itself: it imports what it declares, and nothing of redelivery."""

import ast
import sys
from pathlib import Path

import servicebus_standin

#: As pyproject.toml declares them, by the name of the module.
DECLARED = {"proton", "trustme", "isodate"}


def test_the_stand_in_imports_only_what_it_declares() -> None:
    found = set()
    for path in Path(servicebus_standin.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    assert found - sys.stdlib_module_names == {"servicebus_standin", *DECLARED}
