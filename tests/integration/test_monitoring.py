"""Metrics, alarms and the dashboard, checked with promtool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
ALERTS: Final = ROOT / "conf" / "prometheus" / "alerts.yml"
DASHBOARD: Final = ROOT / "conf" / "grafana" / "volcache.json"


def test_promtool_accepts_the_metrics(
    promtool: Callable[..., str], metrics: str
) -> None:
    """Format, names, units and help texts."""
    assert "volcache_hot_server_up" in metrics
    assert promtool("check", "metrics", text=metrics) == ""


# --- Files in conf/ ----------------------------------------------------------------


def expressions() -> list[str]:
    """Return the queries of the dashboard, as Prometheus receives them."""
    found: list[str] = [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", [])
    ]
    assert len(found) > 60
    return [
        re.sub(r"\$(machine|instance)", ".*", expression).replace(
            "$__rate_interval", "1m"
        )
        for expression in found
    ]


@pytest.mark.parametrize("path", [ALERTS, DASHBOARD], ids=lambda path: path.name)
def test_metric_or_label_in_use_exists(path: Path, metrics: str) -> None:
    """With a name that does not exist an alarm never fires, and a panel stays empty."""
    # Also those without a value yet.
    given = set(re.findall(r"^(?:# TYPE )?(\w+)", metrics, re.MULTILINE))
    labels = set(re.findall(r"[{,](\w+)=", metrics)) | {"instance", "job", "machine"}
    labels.add("nginx")  # That of `volcache cluster drain`.

    asked = path.read_text() if path == ALERTS else "\n".join(expressions())
    names = set(re.findall(r"\b(?:volcache|process)_\w+", asked))
    assert len(names) > 10
    assert names <= given
    by = re.findall(r"\b(?:by|on) \(([^)]*)\)", asked)
    used = {label.strip() for group in by for label in group.split(",")}
    used |= set(re.findall(r"[{,] ?(\w+)=", asked))
    used |= set(re.findall(r"\$labels\.(\w+)", asked))
    assert len(used) > 3
    assert used <= labels


def test_dashboard_is_well_formed() -> None:
    """What Grafana expects of panels, and what a reader does of numbers."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert list(variables) == ["datasource", "machine", "instance"]
    assert all(one.get("allValue", ".*") == ".*" for one in variables.values())
    places: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & places, panel["title"]
        places |= cells
        if panel["type"] == "row":
            continue
        assert panel["type"] in {"stat", "table", "timeseries"}
        assert panel["description"].endswith(".")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)
        for target in panel["targets"]:
            selects = 'machine=~"$machine", instance=~"$instance"' in target["expr"]
            assert selects != ('job="volcache-nginx"' in target["expr"])
