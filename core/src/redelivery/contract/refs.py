"""Knative references (`ref`): which of them a broker resolves. Pure: depends on capabilities alone."""

from __future__ import annotations

from redelivery.base.urls import nearest
from redelivery.contract.capabilities import Capabilities
from redelivery.contract.spec import Ref
from redelivery.errors import ConfigurationError


def check_ref(ref: Ref, can: Capabilities, broker: str) -> None:
    """Refuse a reference to an object that a broker does not know.

    Args:
        ref: the reference.
        can: the broker's capabilities.
        broker: the plugin's name, for the message.

    Raises:
        ConfigurationError: its kind is not one of `ref_kinds`, or it names a namespace. No plugin asks Kubernetes, so
            none can tell which broker an object of another namespace belongs to.
    """
    what = f"deadLetterSink: the ref {ref.group_kind}/{ref.name}"
    if not can.ref_kinds:
        raise ConfigurationError(f"{what}: {broker} resolves no refs; give a URL")
    known = f"{broker} resolves {', '.join(can.ref_kinds)}"
    if ref.group_kind not in can.ref_kinds:
        near = nearest(ref.group_kind, can.ref_kinds)
        hint = f"; did you mean {near}?" if near else "; or give a URL"
        raise ConfigurationError(f"{what}: not a kind of object that is known here: {known}{hint}")
    if ref.namespace:
        text = f"names the namespace {ref.namespace!r}, which nothing here can look into"
        raise ConfigurationError(f"{what} {text}: {known}, by name alone; leave the namespace out, or give a URL")
