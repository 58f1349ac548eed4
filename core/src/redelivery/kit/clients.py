"""Client libraries: a plugin's module is imported to list it, its client only when a URL is opened."""

from __future__ import annotations

from importlib.util import find_spec


def find_client(name: str) -> None:
    """Check that a client library is installed, without importing it.

    Call it in the hook `redelivery_plugin`, where a plugin imports its client only in `connect`: discovery then reports
    a plugin whose client is missing, as it would if the plugin imported it.

    Args:
        name: of a module, as it is imported.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
