"""/metrics keeps Prometheus' conventions, and the dashboard asks for nothing that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from monitor.web.metrics import exposition
from tests.monitor.pictures import GIB, NOW, node, picture

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana.json"
UNITS = ("seconds", "bytes", "ratio")


def families(text: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def values(name: str, label: str = "node") -> dict[str, float]:
    return {sample.labels.get(label, ""): sample.value for sample in families(exposition(picture()))[name].samples}


def test_metrics_of_nodes_hold_all_known_values() -> None:
    assert values("farhome_node_load") == {"n1": 3.2, "n2": 2.0, "n3": 0.0, "n10-with-a-very-long-name": 0.0}
    assert values("farhome_node_memory_free_bytes")["n1"] == 4 * GIB
    assert values("farhome_node_utilisability_ratio") == {"n1": 0.875}
    assert values("farhome_node_lends") == {"n1": 1, "n2": 1, "n3": 0, "n10-with-a-very-long-name": 0}
    assert values("farhome_nodes", "state") == {"lends": 2, "closed": 0, "blocked": 1, "silent": 1, "dead": 1}


def test_moves_are_counters() -> None:
    assert values("farhome_moves", "kind") == {"out": 7, "hop": 2, "home": 5}
    assert values("farhome_moves_not_made") == {"": 3}
    assert values("farhome_processes_lost") == {"": 1}
    assert values("farhome_moves_frozen_seconds") == {"": 1.25}
    assert values("farhome_moved_bytes") == {"": 5 * GIB}
    assert values("farhome_mosd_start_time_seconds") == {"": NOW - 3600}
    assert values("farhome_processes_away") == {"n2": 1, "n3": 0, "n10-with-a-very-long-name": 0}
    assert values("farhome_home_processes", "state")["away"] == 1


def test_names_labels_and_types_are_as_prometheus_wants_them() -> None:
    text = exposition(picture()).decode()
    for family in families(text.encode()).values():
        assert family.name.startswith("farhome_")
        assert family.documentation
        for sample in family.samples:
            assert set(sample.labels) <= {"node", "state", "kind"}, "nothing that grows with processes or users"
            assert sample.name.endswith("_total") == (family.type == "counter")
    assert not re.search(r"_(ms|milliseconds|kb|mb|percent|minutes)\b", text)
    assert "4711" not in text


def test_a_name_with_quotes_and_backslashes_is_escaped() -> None:
    name = 'n"1\\'
    found = families(exposition(picture(nodes=[node(name, 1.5)])))["farhome_node_load"]
    assert [(sample.labels["node"], sample.value) for sample in found.samples] == [(name, 1.5)]


def test_without_a_daemon_there_is_one_metric_that_says_so() -> None:
    (family,) = families(exposition(None)).values()
    assert (family.name, family.samples[0].value) == ("farhome_mosd_up", 0.0)


def test_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    known = {sample.name for family in families(exposition(picture())).values() for sample in family.samples}
    asked = {name for panel in dashboard["panels"] for target in panel["targets"] for name in re.findall(r"farhome_\w+", target["expr"])}
    assert len(asked) > 10
    assert asked <= known
