"""The cluster in Prometheus' words: base units, counters that end in _total, no label that grows with processes or users."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from monitor.picture import HOME, Node, Picture

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NODE_GAUGES: Sequence[tuple[str, str, Callable[[Node], float | None]]] = (
    ("load", "Runnable threads for each core of the yardstick's speed.", lambda node: node.load),
    ("runnable_threads", "Threads that run or want to.", lambda node: node.runnable),
    ("cores", "Cores that the node may use.", lambda node: node.cores),
    ("speed_ratio", "Speed of one core, against the yardstick.", lambda node: node.speed),
    ("memory_free_bytes", "Memory that is free to use.", lambda node: node.memory_free),
    ("memory_size_bytes", "Memory in all.", lambda node: node.memory_total),
    ("utilisability_ratio", "Share of time that does not go to waiting for memory.", lambda node: node.utilisability),
    ("guests", "Processes of other nodes on the node.", lambda node: node.guests),
    ("lends", "Whether the node takes guests now.", lambda node: node.state == "lends"),
    ("blocked", "Whether the node's owner has blocked it.", lambda node: node.blocked),
    ("information_age_seconds", "How old what is known of the node is.", lambda node: node.age),
)
STATES = ("starting", "home", "leaving", "away", "hopping", "coming", "lost")


class _Collector:
    """One picture, or none if the daemon does not answer."""

    def __init__(self, picture: Picture | None) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        yield GaugeMetricFamily("farhome_mosd_up", "Whether the node daemon of this node answers.", float(self._picture is not None))
        if self._picture is not None:
            yield from _of_nodes(self._picture)
            yield from _of_processes(self._picture)
            yield from _of_moves(self._picture)


def _of_nodes(picture: Picture) -> Iterator[Metric]:
    """Nodes as this one knows them; of one that is dead there is nothing but its number."""
    known = GaugeMetricFamily("farhome_nodes", "Nodes of the cluster by what is known of them.", labels=["state"])
    for state in ("lends", "closed", "blocked", "silent", "dead"):
        known.add_metric([state], sum(node.state == state for node in picture.nodes))
    yield known
    for name, text, value in NODE_GAUGES:
        family = GaugeMetricFamily(f"farhome_node_{name}", text, labels=["node"])
        for node in picture.living():
            if (figure := value(node)) is not None:
                family.add_metric([node.name], float(figure))
        yield family


def _of_processes(picture: Picture) -> Iterator[Metric]:
    family = GaugeMetricFamily("farhome_home_processes", "Home processes of this node by state.", labels=["state"])
    for state in STATES:
        family.add_metric([state], sum(process.state == state for process in picture.processes))
    yield family
    away = GaugeMetricFamily("farhome_processes_away", "Home processes of this node that are on another one.", labels=["node"])
    for node in picture.living():
        if not node.self:
            away.add_metric([node.name], sum(process.where == node.name != HOME for process in picture.processes))
    yield away


def _of_moves(picture: Picture) -> Iterator[Metric]:
    counters = picture.counters
    yield GaugeMetricFamily("farhome_mosd_start_time_seconds", "When the node daemon began, since the epoch.", counters.since)
    moves = CounterMetricFamily("farhome_moves", "Moves of this node's home processes.", labels=["kind"])
    for kind, count in (("out", counters.out), ("hop", counters.hop), ("home", counters.home)):
        moves.add_metric([kind], count)
    yield moves
    yield CounterMetricFamily("farhome_moves_not_made", "Moves that were refused or failed.", counters.failed)
    yield CounterMetricFamily("farhome_processes_lost", "Home processes of this node that farhome has lost.", counters.lost)
    yield CounterMetricFamily("farhome_moves_frozen_seconds", "Time that processes stood still to be moved.", counters.frozen_seconds)
    yield CounterMetricFamily("farhome_moved_bytes", "Bytes that moves have carried.", counters.moved_bytes)


def exposition(picture: Picture | None) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(picture))
    return generate_latest(registry)
