"""Alarms: which fire in each incident of the runbook, checked with promtool."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
ALERTS: Final = ROOT / "conf" / "prometheus" / "alerts.yml"
RUNBOOK: Final = ROOT / "docs" / "RUNBOOK.md"
INCIDENTS: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("incidents.toml").read_text()
)
MACHINES: Final = {"a": "m1", "b": "m1", "c": "m2"}
JOBS: Final = {**dict.fromkeys("abc", "volcache"), "m1": "volcache-nginx"}
NGINX: Final = (
    "up 1",
    "nginx_up 1",
    "nginx_connections_accepted 0+100",
    "nginx_connections_handled 0+100",
)
ASKED: Final = "count by (alertname, machine, instance) (ALERTS{alertstate='firing'})"
Series = dict[tuple[str, str], str]  # Values by instance and metric.


def incident(name: str) -> Mapping[str, Any]:
    """Return an incident, or the one that it looks like."""
    found = INCIDENTS[name]
    return INCIDENTS[found["same"]] if "same" in found else found


def lines_of(*lines: str) -> Iterator[tuple[str, str, str]]:
    """Yield instance, metric and values of lines of the file."""
    for line in lines:
        match = re.fullmatch(r"(\S+) (\w+(?:\{.*\})?) (.*)", line)
        assert match, line
        for instance in MACHINES if match[1] == "*" else [match[1]]:
            yield instance, match[2], match[3]


def series_of(name: str, metrics: str, used: set[str]) -> Series:
    """Return all series in an incident, of the metrics that alarms use."""
    found: Series = {}
    for instance in MACHINES:
        found[instance, "up"] = "1"
        for metric, value in re.findall(r"^(\w[^ ]*) (\S+)$", metrics, re.MULTILINE):
            if metric.partition("{")[0] in used:
                found[instance, metric] = value
    found |= {("m1", line.split()[0]): line.split()[1] for line in NGINX}
    now = incident(name)
    for line in (*INCIDENTS["healthy"]["series"], *now.get("series", ())):
        for instance, metric, values in lines_of(line):
            name_ = metric.partition("{")[0].removesuffix("_bucket")
            assert instance == "m1" or f"# TYPE {name_} " in metrics, line
            found[instance, metric] = values
    for (instance, metric), values in found.items():
        if instance in now.get("dead", ()):
            found[instance, metric] = "1x5 0" if metric == "up" else f"{values}x5 stale"
    return found


def labelled(instance: str, metric: str) -> str:
    """Return a metric with the labels that Prometheus adds."""
    name, _, labels = metric.removesuffix("}").partition("{")
    machine = MACHINES.get(instance, instance)
    own = f'job="{JOBS[instance]}", machine="{machine}", instance="{instance}"'
    return f"{name}{{{labels}{', ' if labels else ''}{own}}}"


def case_of(name: str, metrics: str, used: set[str]) -> dict[str, Any]:
    """Return a case for promtool."""
    found = incident(name)
    at, step = found.get("at", 20), found.get("step", 1)
    values = {
        labelled(*key): text if text.endswith("stale") else f"{text}x{at // step + 9}"
        for key, text in series_of(name, metrics, used).items()
    }
    expected = []
    for alarm in found["fires"]:
        alertname, *where = alarm.split()
        labels = dict(zip(("machine", "instance"), where, strict=False))
        if alertname.startswith("VolcacheNginx"):
            labels["instance"] = "m1"
        pairs = {"alertname": alertname, **labels}.items()
        text = ", ".join(f'{label}="{value}"' for label, value in pairs)
        expected.append({"labels": f"{{{text}}}", "value": 1})
    return {
        "name": name,
        "interval": f"{step}m",
        "input_series": [{"series": s, "values": v} for s, v in values.items()],
        "promql_expr_test": [
            {"expr": ASKED, "eval_time": f"{at}m", "exp_samples": expected}
        ],
    }


def files_of(folder: Path, cases: list[dict[str, Any]]) -> list[Path]:
    """Write cases for promtool; those of more than a day are evaluated less often."""
    files = []
    for interval in ("1m", "15m"):
        some = [
            case
            for case in cases
            if (re.search(r'"(\d{4}m|\d{2}h)"', json.dumps(case)) is None)
            == (interval == "1m")
        ]
        rules = {"rule_files": [str(ALERTS)], "evaluation_interval": interval}
        files.append(folder / f"{interval}.yml")
        files[-1].write_text(json.dumps(rules | {"tests": some}))  # JSON is YAML.
    return files


def test_incident_of_the_runbook_fires_its_alarms_and_no_other(
    promtool: Callable[..., str], metrics: str, tmp_path: Path
) -> None:
    """With the metrics of a real instance; the incidents are the rows of its tables."""
    alerts = ALERTS.read_text()
    used = set(re.findall(r"\b(?:volcache|process|nginx)_\w+", alerts)) | {"up"}
    cells = set(re.findall(r"^\| ([^|]+?) \| ", RUNBOOK.read_text(), re.MULTILINE))
    names = {re.sub(r"^`(\w+)`, \w+$", r"\1", cell) for cell in cells}
    assert set(INCIDENTS) - {"healthy"} == names - {"symptom", "alarm"}
    fired = {
        alarm.split()[0] for name in INCIDENTS for alarm in incident(name)["fires"]
    }
    assert fired == set(re.findall(r"- alert: (\w+)", alerts))
    files = files_of(tmp_path, [case_of(name, metrics, used) for name in INCIDENTS])
    assert promtool("test", "rules", *files).count("SUCCESS") == len(files)


def test_alarm_in_each_case_of_alerts_test_fires_as_it_says(
    promtool: Callable[..., str], tmp_path: Path
) -> None:
    """With its labels and texts."""
    cases = Path(__file__).with_name("alerts_test.yml").read_text()
    files = files_of(tmp_path, yaml.safe_load(cases)["tests"])
    assert promtool("test", "rules", *files).count("SUCCESS") == len(files)
