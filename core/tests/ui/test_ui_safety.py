"""Who may use the page: the token, the cookie, the host, the origin, the form's token; the headers of every answer."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ui_page import ORIGIN, PORT, Opened, bury

from redelivery.contract.message import Message
from redelivery.ui.safety import FORM_BYTES, HEADERS

LOOK = "/places/orders/look"


def test_the_token_of_the_start_url_works_once(opened: Opened) -> None:
    browser = opened(begin=False)
    token = browser.page.session.token
    assert browser.get("/").status_code == 401
    assert browser.get("/start", params={"token": "x" * 43}).status_code == 403
    begun = browser.get("/start", params={"token": token})
    assert begun.status_code == 200
    cookie = begun.headers["set-cookie"]
    assert f"redelivery-{PORT}=" in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert token not in cookie
    assert browser.get("/").status_code == 200
    assert browser.get("/start", params={"token": token}).status_code == 200  # its own browser goes on
    browser.cookies.clear()
    second = browser.get("/start", params={"token": token})
    assert second.status_code == 403
    assert "start `redelivery ui` again" in second.text
    assert "set-cookie" not in second.headers


@pytest.mark.parametrize("value", ["", "forged", "\x7f", '"', "a" * 5000])
def test_a_forged_cookie_is_no_session(opened: Opened, value: str) -> None:
    browser = opened()
    browser.cookies.clear()
    answer = browser.get("/", headers={"cookie": f"redelivery-{PORT}={value}"})
    assert answer.status_code == 401
    assert "printed in its terminal" in answer.text


def test_cookies_of_other_services_of_this_host_are_passed_over(opened: Opened) -> None:
    browser = opened()
    own = f"redelivery-{PORT}={browser.page.session._value}"
    browser.cookies.clear()
    for others in ('a={"b": "c, d"}; %s', "%s; x=\x7f", "a; =b; ;;%s", f"redelivery-{PORT}=old; %s"):
        assert browser.get("/", headers={"cookie": others % own}).status_code == 200, others
    for others in (f"x{own}", f"a=b,{own}", f'redelivery-{PORT}="{own.partition("=")[2]}"x'):
        assert browser.get("/", headers={"cookie": others}).status_code == 401, others


def test_a_cookie_of_an_earlier_start_is_no_session(opened: Opened) -> None:
    first = opened()
    second = opened(begin=False)
    second.cookies = first.cookies
    assert second.get("/").status_code == 401


def test_nobody_has_the_session_before_the_token_is_used(opened: Opened) -> None:
    browser = opened(begin=False)
    value = browser.page.session._value
    assert browser.get("/", headers={"cookie": f"redelivery-{PORT}={value}"}).status_code == 401


def test_two_tabs_share_the_session(opened: Opened) -> None:
    browser = opened()
    assert [browser.get("/").status_code, browser.get("/places/orders").status_code] == [200, 200]


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", "127.0.0.1", f"127.0.0.1.evil.example:{PORT}", ""]
)
def test_another_hosts_name_is_refused_whatever_else_is_right(opened: Opened, host: str) -> None:
    browser = opened()
    for path in ("/", "/start", "/static/page.css", LOOK):
        answer = browser.get(path, headers={"host": host})
        assert answer.status_code == 421, path
        assert "orders" not in answer.text


def test_localhost_is_this_host(opened: Opened) -> None:
    browser = opened()
    assert browser.get("/static/page.css", headers={"host": f"localhost:{PORT}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://evil.example:8765", "sec-fetch-site": "same-origin"},
        {"origin": f"http://localhost:{PORT}"},
        {"origin": "null"},
        {},
        {"sec-fetch-site": "cross-site"},
        {"origin": ORIGIN, "sec-fetch-site": "cross-site"},
        {"origin": ORIGIN, "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
def test_a_form_from_another_site_does_nothing(opened: Opened, headers: dict[str, str]) -> None:
    browser = opened()
    answer = browser.post(LOOK, data={"csrf": browser.page.session.csrf}, headers=headers)
    assert answer.status_code == 403
    assert "another site" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": ORIGIN},
        {"origin": ORIGIN, "sec-fetch-site": "same-origin"},
        {"origin": "null", "sec-fetch-site": "same-origin"},  # as `no-referrer` has it
    ],
    ids=str,
)
def test_a_form_of_the_page_is_accepted(opened: Opened, headers: dict[str, str]) -> None:
    browser = opened()
    answer = browser.post(LOOK, data={"csrf": browser.page.session.csrf}, headers=headers)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/places/orders"


@pytest.mark.parametrize("form", [{"a": "b"}, {"csrf": ""}, {"csrf": "x" * 43}, {"csrf": ["right", "right"]}], ids=str)
def test_a_form_without_the_sessions_token_does_nothing(opened: Opened, form: dict[str, Any]) -> None:
    browser = opened()
    if form.get("csrf") == ["right", "right"]:
        form = {"csrf": [browser.page.session.csrf] * 2}
    answer = browser.post(LOOK, data=form, headers={"origin": ORIGIN})
    assert answer.status_code == 403


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data; boundary=x", ""])
def test_only_forms_of_the_page_are_read(opened: Opened, kind: str) -> None:
    browser = opened()
    content = f"csrf={browser.page.session.csrf}".encode()
    answer = browser.post(LOOK, content=content, headers={"origin": ORIGIN, "content-type": kind})
    assert answer.status_code == 415


def test_a_form_is_bounded_whatever_length_it_declares(opened: Opened) -> None:
    browser = opened()
    kind = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
    assert browser.post(LOOK, content=b"a" * (FORM_BYTES + 1), headers=kind).status_code == 413

    def parts() -> Any:
        for _ in range(FORM_BYTES // 65_536 + 2):
            yield b"a" * 65_536

    assert browser.post(LOOK, content=parts(), headers=kind).status_code == 413
    assert browser.post(LOOK, content=b"a=1&" * 2000, headers=kind).status_code == 400
    assert browser.post(LOOK, content="größe".encode(), headers=kind).status_code == 400


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "<script>"])
def test_other_methods_are_refused(opened: Opened, method: str) -> None:
    browser = opened()
    answer = browser.request(method, "/")
    assert answer.status_code == 405
    assert "<script>" not in answer.text


def test_what_changes_something_is_not_done_by_a_link(opened: Opened) -> None:
    browser = opened()
    assert browser.get(LOOK).status_code == 405
    assert browser.submit("/").status_code == 405


def test_every_answer_has_the_headers_of_safety(opened: Opened, url: str) -> None:
    bury(url, Message(id="one", value=b"{}"))
    browser = opened()
    browser.settled("/")
    letter = re.search(r'href="(/places/orders/letters/[^"?]+)"', browser.get("/places/orders/letters").text)
    assert letter
    answers = [browser.get(path) for path in ("/", "/places/orders", "/places/orders/letters", letter[1], "/nowhere")]
    answers += [browser.get(path) for path in ("/static/page.css", "/static/nowhere", "/start", "/places/nowhere")]
    answers += [browser.get("/", headers={"host": "evil.example"}), browser.submit(LOOK), browser.post("/")]
    answers += [browser.get("/places/orders/letters?where=nonsense"), browser.request("PUT", "/")]
    answers += [
        browser.get("/" + "a" * 20_000),
        browser.get("/static/../page.py"),
        browser.get("/static/%2e%2e/page.py"),
    ]
    browser.cookies.clear()
    answers.append(browser.get("/"))
    for answer in answers:
        assert HEADERS.items() <= dict(answer.headers).items(), answer.url
        assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son[a-z]+=|javascript:", answer.text), answer.url
    assert "default-src 'none'" in HEADERS["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert {answer.status_code for answer in answers} == {200, 303, 400, 401, 403, 404, 405, 414, 421}


def test_a_link_on_another_site_is_opened_again_from_here(opened: Opened) -> None:
    browser = opened()
    browser.cookies.clear()  # a browser keeps a strict cookie back there
    from_chat = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    answer = browser.get("/places/orders/letters?where=code=X&a=%22%3E%3Cscript%3E", headers=from_chat)
    assert answer.status_code == 200
    assert 'content="0;url=/places/orders/letters?where=code=X&amp;a=%22%3E%3Cscript%3E"' in answer.text
    assert "<script" not in answer.text
    again = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"}
    assert browser.get("/places/orders", headers=again).status_code == 401  # and not forever


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "///evil.example"])
def test_no_link_leads_to_another_site(opened: Opened, path: str) -> None:
    browser = opened(begin=False)
    answer = browser.get(f"{ORIGIN}{path}", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
    target = re.search(r"url=([^\"]*)", answer.text)
    assert target
    assert re.match(r"/[^/\\]", target[1])
