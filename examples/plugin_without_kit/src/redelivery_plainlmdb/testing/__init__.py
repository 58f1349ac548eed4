"""The harness of the other form of this plugin: both write the same records."""

from __future__ import annotations

from redelivery_lmdb.testing import LmdbHarness


class PlainLmdbHarness(LmdbHarness):
    """What the entry point `plainlmdb` of the group `redelivery_testing` names."""

    name = "plainlmdb"
