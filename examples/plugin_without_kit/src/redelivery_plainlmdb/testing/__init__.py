"""The harness of `third_party_plugin`, reused: both plugins write the same records."""

from __future__ import annotations

from redelivery_lmdb.testing import LmdbHarness


class PlainLmdbHarness(LmdbHarness):
    """The harness that the entry point `plainlmdb` of the group `redelivery_testing` names."""

    name = "plainlmdb"
