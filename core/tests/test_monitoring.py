"""The rules and the dashboard to copy: they parse, and every metric and label in them is one that the watch serves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from redelivery.base.clock import SystemClock
from redelivery.codes import Code
from redelivery.watch.looking import Known
from redelivery.watch.metrics import Metrics, PlaceFigures
from redelivery.watch.redriven import OUTCOMES
from redelivery.watch.rules import Rule
from redelivery.watch.webhook import ALERT_NAMES, Result

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
TARGETS = [each for panel in DASHBOARD["panels"] for each in panel["targets"]]
#: What expressions are made of.
TOKEN = re.compile(
    r"\s*(?:(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<text>\"[^\"]*\")|(?P<duration>\[[0-9]+[smhd]\])"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/<>=(){},]))"
)
FUNCTIONS = {"sum", "max", "count", "increase", "absent", "time", "topk", "vector"}
WORDS = {"by", "and", "or"}
#: The values that a label may be compared with.
VALUES = {
    "alert": {each.value for each in Rule},
    "outcome": set(OUTCOMES),
    "result": {each.value for each in Result} | {"success", "failure"},
    "code": {each.value for each in Code},
}


def served() -> dict[str, set[str]]:
    """Return the labels of each metric that the watch serves."""
    groups = {"123456789abc": 1}
    known = Known(count=1, oldest_ms=1, looked_ms=1, whole_ms=1)
    known.by_code, known.groups = known.arrived.copy(), known.arrived.copy()
    known.by_code.update({"FULL": 1})
    known.groups.update(groups)
    place = PlaceFigures(place="orders", broker="b", up=True, known=known, looks=1, failures=0, active={}, redriven={})
    return {
        sample.name: set(sample.labels)
        for family in Metrics(lambda: [place], dict, SystemClock()).collect()
        for sample in family.samples
    }


def expressions() -> list[str]:
    return [*(each["expr"] for each in RULES), *(each["expr"] for each in TARGETS)]


def tokens(expression: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        assert match is not None, expression[at:]
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    return found


def check(expression: str) -> None:
    """Check that an expression is made of known words, metrics and labels, and that its parentheses match."""
    metrics = served()
    labels = {"place", "broker", "code", "group", "outcome", "alert", "result"}
    open_, used = [], ""
    found = tokens(expression)
    for at, (kind, text) in enumerate(found):
        after = found[at + 1][1] if at + 1 < len(found) else ""
        if text in {"(", "{"}:
            open_.append(text)
        elif text in {")", "}"}:
            assert open_, expression
            assert open_.pop() + text in {"()", "{}"}, expression
        elif kind == "name" and text.startswith("redelivery_"):
            assert text in metrics, f"{text} is not served"
            used = text
        elif kind == "name" and open_[-1:] == ["{"]:
            assert text in metrics[used], f"{used} has no label {text}"
            assert after in {"=", "!=", "=~", "!~"}
            values = found[at + 2][1].strip('"')
            assert values == "$place" or set(values.split("|")) <= VALUES[text], values
        elif kind == "name":
            assert text in FUNCTIONS | WORDS | labels, text
        elif kind == "duration":
            assert used.endswith("_total"), f"{used} is not a counter"
    assert not open_, expression


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_asks_for_what_is_served(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "redelivery_dead_letter > 1",
        "sum(redelivery_dead_letters",
        'redelivery_dead_letters{code="FULL"}',
        'redelivery_dead_letters_by_code{code="FUL"}',
        "increase(redelivery_dead_letters[5m])",
        "mean(redelivery_dead_letters)",
        "redelivery_up ! 1",
    ],
)
def test_a_mistake_in_an_expression_is_found(expression: str) -> None:
    with pytest.raises(AssertionError):
        check(expression)


def test_every_rule_is_complete_and_has_the_name_that_the_watch_itself_uses() -> None:
    names = [each["alert"] for each in RULES]
    assert len(set(names)) == len(names)
    assert set(ALERT_NAMES.values()) <= set(names)
    for each in RULES:
        assert set(each) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"[0-9]+m", each.get("for", "1m"))
        assert each["labels"]["severity"] in {"warning", "critical"}
        assert each["annotations"]["summary"]


def test_the_dashboard_is_one_that_grafana_reads() -> None:
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities)
    names = {each["name"] for each in DASHBOARD["templating"]["list"]}
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["targets"]
        assert set(re.findall(r"\$\{?(\w+)", json.dumps(panel))) <= names


def test_every_metric_is_on_the_dashboard_or_in_a_rule() -> None:
    said = " ".join(expressions())
    unsaid = {name for name in served() if re.search(rf"\b{name}\b", said) is None}
    assert unsaid == {"redelivery_watch_looks_total"}
