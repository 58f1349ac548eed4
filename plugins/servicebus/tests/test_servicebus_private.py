"""The client library's private parts: used in one module, and only on versions for which they were tried."""

import ast
import importlib.metadata
from pathlib import Path

import redelivery_servicebus
from redelivery_servicebus.client import private

SOURCES = Path(redelivery_servicebus.__file__).parent


def private_names(path: Path) -> set[str]:
    """Private attributes of anything but an object's own."""
    found = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute))
    return {
        f"{path.name}:{node.lineno}: {node.attr}"
        for node in found
        if node.attr.startswith("_") and not node.attr.startswith("__")
        if ast.unparse(node.value) not in {"self", "cls", "super()"}
    }


def test_the_private_parts_were_tried_for_this_version_of_the_client() -> None:
    """On another version: run this plugin's tests and its conformance tests, and add the version to `TRIED`."""
    assert importlib.metadata.version("azure-servicebus") in private.TRIED


def test_one_module_alone_touches_private_parts() -> None:
    touching = {path.name: names for path in SOURCES.rglob("*.py") if (names := private_names(path))}
    assert touching.keys() == {"private.py"}, touching
