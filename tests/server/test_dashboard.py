"""The Grafana dashboard uses only metrics of the Prometheus page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chaski.address import DEFAULT_PORT
from tests.server.running import Running

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD = json.loads((DEPLOY / "grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
QUERIES = [
    variable["query"]["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"
]

TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_:][\w:]*)|(?P<text>"[^"\\]*")|(?P<range>\[(?:\$__rate_interval|\d+[smhd])\])"""
    r"""|(?P<number>\d+(?:\.\d+)?)|(?P<sign>=~|!~|!=|[(){},=/*+-]))"""
)
FUNCTIONS = {"rate", "sum", "max", "histogram_quantile", "label_values"}
CLOSING = {"(": ")", "{": "}"}
# Labels that Prometheus adds.
SCRAPED = {"instance"}


def parse(expression: str) -> tuple[set[str], set[str]]:
    """Return the metrics and labels in an expression. Raises ValueError if it is invalid."""
    metrics, labels = set[str](), set[str]()
    open_: list[str] = []  # expected closing signs; "by)" for the labels of an aggregation
    tokens = []
    place = 0
    while place < len(expression):
        if (found := TOKEN.match(expression, place)) is None:
            raise ValueError(f"{expression[place:]!r} is no token")
        tokens.append((str(found.lastgroup), found[0].strip()))
        place = found.end()
    for n, (kind, token) in enumerate(tokens):
        following = tokens[n + 1][1] if n + 1 < len(tokens) else ""
        if token in CLOSING:
            is_by = n > 0 and tokens[n - 1][1] == "by"
            open_.append("by)" if is_by else CLOSING[token])
        elif token in CLOSING.values():
            if not open_ or open_.pop()[-1] != token:
                raise ValueError(f"{token} closes nothing in {expression}")
        elif kind == "range" and tokens[n - 1][1] != "}":
            raise ValueError(f"a range of nothing in {expression}")
        elif kind == "name":
            is_label = bool(open_) and open_[-1] in ("}", "by)")
            is_last_argument = expression.startswith("label_values") and n == len(tokens) - 2
            if is_label or is_last_argument:
                labels.add(token)
            elif following == "(":
                if token not in (*FUNCTIONS, "by"):
                    raise ValueError(f"{token} is no function")
            elif token not in (*FUNCTIONS, "by"):
                metrics.add(token)
    if open_:
        raise ValueError(f"{expression} does not end")
    return metrics, labels


@pytest.fixture(scope="module")
def told(server: Running) -> dict[str, set[str]]:
    """Return the names of all series on the page, with their labels if there are samples."""
    body = {"model": "helper", "prompt": "a", "raw": True, "stream": False, "options": {"num_predict": 2}}
    assert server.post("/api/generate", body).status == 200
    names: dict[str, set[str]] = {}
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    for family in text_string_to_metric_families(server.get("/metrics").body.decode()):
        for ending in endings[family.type]:
            names[family.name + ending] = set()
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


@pytest.mark.parametrize("expression", EXPRESSIONS + QUERIES)
def test_expressions_ask_for_what_is_there(expression: str, told: dict[str, set[str]]) -> None:
    metrics, labels = parse(expression)
    assert metrics
    assert metrics <= told.keys()
    known = set().union(*(told[name] for name in metrics)) | SCRAPED
    if all(told[name] for name in metrics):
        assert labels <= known


@pytest.mark.parametrize(
    "bad",
    [
        *("sum(rate(a[5m])", "nothing(a)", "sum(a}", "rate(a{b=~'c'}[5m])", "rate(a{}[soon])"),
        *("sum(a))", "rate([5m])", "a; b"),
    ],
)
def test_what_is_no_expression(bad: str) -> None:
    with pytest.raises(ValueError, match=r"no token|closes|range|function|end"):
        parse(bad)


def test_names_and_labels_of_an_expression() -> None:
    text = 'histogram_quantile(0.5, sum by (le, c) (rate(a:b_bucket{d=~"$e"}[$__rate_interval]))) / sum(f)'
    assert parse(text) == ({"a:b_bucket", "f"}, {"le", "c", "d"})


def test_variables_and_places_of_panels() -> None:
    variables: set[str] = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) - {"__rate_interval", "__all"} == variables
    places: list[Any] = [panel["gridPos"] for panel in BOARD["panels"]]
    cells = [
        (x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(places)


def test_prometheus_asks_where_the_server_listens() -> None:
    text = (DEPLOY / "prometheus.yml").read_text()
    assert f'["127.0.0.1:{DEFAULT_PORT}"]' in text
    assert "metrics_path: /metrics" in text
