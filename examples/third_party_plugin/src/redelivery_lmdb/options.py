"""The client options."""

from __future__ import annotations

from dataclasses import dataclass

from redelivery.kit.options import Options, integer


@dataclass(frozen=True, slots=True)
class Settings(Options, broker="lmdb"):
    """The values of the client options."""

    map_size: int = integer(1 << 30, "the file's largest size in bytes", least=1 << 16, most=1 << 46)
