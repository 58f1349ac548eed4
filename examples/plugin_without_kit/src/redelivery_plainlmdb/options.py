"""The client options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redelivery.errors import ConfigurationError, UnknownOption

OPTIONS = {"map_size": "the file's largest size in bytes (1073741824)"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the client options."""

    map_size: int = 1 << 30

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Settings:
        """Read the options. Raises UnknownOption, ConfigurationError."""
        unknown = given.keys() - OPTIONS.keys()
        if unknown:
            raise UnknownOption(f"unknown option 'plainlmdb.{min(unknown)}'; the only one is 'plainlmdb.map_size'")
        map_size = given.get("map_size", "1073741824")
        if not map_size.isdecimal() or not 1 << 16 <= int(map_size) <= 1 << 46:
            raise ConfigurationError("plainlmdb.map_size must be a whole number of bytes from 65536 to 70368744177664")
        return cls(int(map_size))
