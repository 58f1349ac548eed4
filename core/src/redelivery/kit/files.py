"""Files that only their owner may read, for brokers of one host."""

from __future__ import annotations

from redelivery.base.files import is_folder, make_private, make_private_folder, open_private, refuse_link

__all__ = ["is_folder", "make_private", "make_private_folder", "open_private", "refuse_link"]
