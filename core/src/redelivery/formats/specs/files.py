"""A delivery spec in a file: YAML or JSON as Knative writes it, or Connect's `.properties`."""

from __future__ import annotations

from pathlib import Path

from redelivery.contract.spec import DeliverySpec
from redelivery.errors import ConfigurationError
from redelivery.formats.specs import connect, knative


def read(path: Path, *, name: str = "spec") -> DeliverySpec:
    """Return the spec that a file holds.

    Args:
        path: of the file.
        name: of the option that names it, for errors.

    Raises:
        ConfigurationError: it cannot be read, or is not a delivery spec.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{name} {path}: {reason}") from error
    return connect.read(_properties(text, name)) if path.suffix == ".properties" else knative.read(text)


def _properties(text: str, name: str) -> dict[str, str]:
    """Parse lines NAME=VALUE as in Connect's worker files; `#` and `!` begin comments."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        key, sign, value = line.partition("=")
        if not sign:
            raise ConfigurationError(f"{name}: line {number} is not a property: it is written NAME=VALUE")
        if key.strip() in found:
            raise ConfigurationError(f"{name}: line {number}: {key.strip()} is written twice; keep one")
        found[key.strip()] = value.strip()
    return found
