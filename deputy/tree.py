"""The processes of one deputy program: the one that it was started for, and the children that it has had away.

A child that is born away is born in the stub, too, whose tracer we are: so it is ours from its first instruction, in the same loop.
"""

from __future__ import annotations

import logging

from deputy.deputy import Deputy
from deputy.link.farewells import Farewells
from deputy.link.trips import Trips
from deputy.options import Options
from wire import tree

log = logging.getLogger("deputy")


class Tree(tree.Tree[Deputy]):
    """See the module."""

    def __init__(self, options: Options) -> None:
        super().__init__(log)
        self._first = options

    def run(self) -> int:
        """Until every process is home or has ended. Returns 1 when there was none."""
        farewells = Farewells()
        try:
            self.members.append(Deputy(self._first, self, Trips(), farewells))
        except ProcessLookupError:
            log.error("process %d is gone", self._first.pid)
            return 1
        try:
            self.live()
        finally:
            farewells.close()
        return 0
