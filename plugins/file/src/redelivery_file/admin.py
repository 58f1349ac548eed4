"""The admin role: the folder."""

from __future__ import annotations

import os
from functools import partial

from redelivery.contract.broker import Admin, Difference, Plan
from redelivery.contract.spec import DeliverySpec, DeliveryStatus
from redelivery.errors import Fatal
from redelivery.kit.errors import Code
from redelivery.kit.files import is_folder
from redelivery.kit.plans import compared
from redelivery.kit.roles import Resource
from redelivery_file.address import Address
from redelivery_file.client.folder import Folder, is_letter, open_folder
from redelivery_file.client.lines import Lines, number_of_file
from redelivery_file.errors import TABLE


class FileAdmin(Resource, Admin):
    """Creates the folder of `address`."""

    def __init__(self, address: Address) -> None:
        super().__init__("file", address.place)
        self._address = address

    def plan(self, spec: DeliverySpec) -> Plan:  # noqa: ARG002 - a folder has no part of a spec
        path = self._address.path
        with TABLE.while_doing(self.doing("looking for")):
            found = is_folder(path)
        is_other = not found and os.path.lexists(path)
        also = [Difference("kind", "folder", "another kind of file")] if is_other else []
        item = compared("folder", str(path), {}, {} if found or is_other else None, also=also)
        return Plan(objects=[item], status=DeliveryStatus())

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:  # noqa: ARG002 - a folder has no part of a spec
        path = self._address.path
        try:
            with TABLE.while_doing(self.doing("making")):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except Fatal as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
            text = f"file: {str(path)!r} exists, but its kind is not folder: correct the URL"
            raise Fatal(text, code=Code.CONFLICT, native_code="EEXIST") from error.__cause__
        return DeliveryStatus()

    def depth(self) -> int:
        folder = open_folder(self._address)
        try:
            with TABLE.while_doing(self.doing("reading")):
                return sum(map(partial(_letters_in, folder), folder.listed()))
        finally:
            folder.close()


def _letters_in(folder: Folder, name: str) -> int:
    """Return how many letters a file has."""
    if number_of_file(name) is None:
        return int(is_letter(name))
    lines = Lines(folder, name)
    try:
        lines.removed.refresh()
        return lines.count(lines.end()) - len(lines.removed.offsets)
    except (FileNotFoundError, ValueError):
        return 0
