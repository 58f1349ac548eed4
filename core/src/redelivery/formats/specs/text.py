"""Reads YAML and JSON text into plain values, strictly: no key may be given twice."""

from __future__ import annotations

import json
from typing import Any

import yaml

from redelivery.base.urls import redact
from redelivery.errors import InvalidSpec


class _Loader(yaml.SafeLoader):
    """Refuses a key that repeats in a mapping, which YAML forbids and PyYAML accepts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        _refuse_twice(names)
        return super().construct_mapping(node, deep=deep)


def load(text: str) -> Any:
    """Return the one document in a YAML or JSON text.

    Raises:
        InvalidSpec: it does not parse; says where, and never quotes the text around it, which may hold secrets.
    """
    try:
        if text.lstrip().startswith(("{", "[")):
            try:  # JSON may be indented by tabs, which YAML refuses
                return json.loads(text, object_pairs_hook=_once)
            except json.JSONDecodeError:
                pass
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader  # nosec B506
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidSpec(f"not valid YAML or JSON{where}: {redact(error.problem or 'cannot be read')}") from None
    except yaml.YAMLError:
        raise InvalidSpec("not valid YAML or JSON: it holds characters that YAML does not allow") from None
    except RecursionError:
        raise InvalidSpec("not a delivery spec: nested too deeply") from None
    except InvalidSpec:
        raise
    except ValueError:  # a scalar that YAML recognises but Python cannot make, as a 13th month
        raise InvalidSpec("not valid YAML or JSON: it holds an impossible number or date; quote it") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_twice([name for name, _ in pairs])
    return dict(pairs)


def _refuse_twice(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidSpec(f"{name}: written twice; keep one")
        seen.add(name)
