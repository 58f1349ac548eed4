"""The page: what an operator sees."""

from __future__ import annotations

import re

from ui_page import Opened, bury

from redelivery.contract.message import Message


def test_all_places_then_a_group_then_a_letter(opened: Opened, url: str) -> None:
    bury(url, *(Message(id=f"o-{number}", value=b'{"order": %d}' % number, key=b"k") for number in range(3)))
    browser = opened()
    text = browser.settled("/")
    assert "<strong>3</strong> letters" in text
    assert "read-only" in text
    assert "<rect" in text
    place = browser.settled("/places/orders")
    group = re.search(r'href="(/places/orders/letters\?where=group[^"]+)"', place)
    assert group
    found = browser.get(group[1].replace("&amp;", "&"))
    assert found.status_code == 200, found.text
    links = re.findall(r'href="(/places/orders/letters/[^"?]+)"', found.text)
    assert len(links) == 3
    letter = browser.get(links[0])
    assert letter.status_code == 200
    assert "no such airport: &#39;größe&#39;" in letter.text
    assert "&#34;order&#34;: 0" in letter.text
    assert "7b 22" in browser.get(f"{links[0]}?as=hex").text
