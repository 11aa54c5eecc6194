"""Virtual nodes on one machine: demo, tests and benches run on them."""

from lab.lab import Lab
from lab.node import Node, NodeProcess
from lab.state import LabError

__all__ = ["Lab", "LabError", "Node", "NodeProcess"]
