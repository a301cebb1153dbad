"""What contrib/ ships: alerts that fire when they should and not otherwise (B4), and nothing that isn't exported."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from jobq.metrics.names import EXPORTER, OUTBOX, WORKER
from tests.lifecycle.conftest import ROOT

CONTRIB = ROOT / "contrib"
ALERTS = CONTRIB / "prometheus" / "alerts.yml"
NAMES = {
    *WORKER, *EXPORTER, *OUTBOX,
    *(
        f"{one.name}_{end}"
        for one in WORKER.values() if one.kind == "histogram" for end in ("bucket", "count", "sum")
    ),
}  # fmt: skip
FILES = [
    ALERTS, ALERTS.with_name("alerts_test.yml"), CONTRIB / "grafana" / "jobq.json",
    CONTRIB / "keda" / "scaledobject.yaml", ROOT / "docs" / "operating" / "monitoring.md",
]  # fmt: skip


@pytest.mark.needs("promtool")
def test_each_alert_fires_on_its_incident_and_is_silent_on_a_normal_day():
    command = ["promtool", "test", "rules", "alerts_test.yml"]
    done = subprocess.run(command, cwd=ALERTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_an_incident_and_a_section_that_its_runbook_names():
    text, cases = ALERTS.read_text(), ALERTS.with_name("alerts_test.yml").read_text()
    runbook = (ROOT / "docs" / "operating" / "runbook.md").read_text()
    sections = re.findall(r"^## (\w+)$", runbook, re.MULTILINE)
    alerts = re.findall(r"alert: (\w+)", text)
    assert len(alerts) == 19
    assert sections == alerts
    for alert in alerts:
        assert f"- name: {alert}\n" in cases
        assert f"alertname: {alert}, eval_time: 7h, exp_alerts: []" in cases
    assert re.findall(r"runbook\.md#(\w+)", text) == [alert.lower() for alert in alerts]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_names_that_are_exported_are_used(path):
    used = set(re.findall(r"\bjobq_[a-z_]+\b", path.read_text()))
    assert used and used <= NAMES


def test_labels_of_panels_are_those_of_their_metrics():
    dashboard = json.loads((CONTRIB / "grafana" / "jobq.json").read_text())
    panels = [one for one in dashboard["panels"] if one["type"] != "row"]
    rows = [one["title"] for one in dashboard["panels"] if one["type"] == "row"]
    assert rows == ["Overview", "Queue", "Job", "Workers", "Server", "Outbox and flows"]
    known = {label for one in (*WORKER.values(), *EXPORTER.values()) for label in one.labels}
    for panel in panels:
        for target in panel["targets"]:
            labels = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            labels += [
                name
                for by in re.findall(r"by \(([^)]*)\)", target["expr"])
                for name in by.split(", ")
            ]
            assert set(labels) <= {*known, "instance", "le"}, panel["title"]
