"""The owner comes first: notices their use, and has the guests held back, stand still and leave as balancer/lending/owner.py says.

    poll()  --sight-->  owner.step()  --state-->  bounds, freezing, eviction

A guest stands still by its control group; its remote does not, and answers its home. What either has begun in the guest (a child being
born, a signal being put) needs the guest to run: so those that stand still breathe, a moment in each second, within their bounds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from balancer.lending.owner import AT_ONCE, OwnerState, Sight, Stage, step
from balancer.lending.policy import LendingPolicy
from node.common import sampling
from node.common.paths import Paths
from node.common.periodic import shared_pause
from node.guests import cgroups
from node.guests.cgroups import Bounds
from node.guests.guest import Surroundings
from node.guests.guests import Guests
from node.owner.owner import InputWatch, OwnLoad, Programs, battery
from node.owner.pressure import PressureWatch, directory, figures, file_of

QUICK, LEAVING, SLOW = 0.04, 0.1, 1.0
"""Seconds between two checks while guests are here whose owner the policy watches, while they leave, and otherwise."""
BREATH, BREATH_PERIOD = 0.02, 1.0
HURRY = 0.3
"""Share of the time that guests have to leave, after which sending them away has as much weight as anything."""
RETRY = 0.5
"""Seconds before those are asked again to go who did not, or have come since."""
SLOW_SENSES = 2.0
"""Seconds between two checks of the battery, of the number of processors, and of averages over 10 s."""
CLOSED_PERIOD = 0.5
"""Seconds between two checks of hours and conditions."""

log = logging.getLogger("mosd.lending")


@dataclass(frozen=True)
class _Glance:
    """What may change from one moment to the next: when the owner last used the node (seconds since the epoch, None: nothing reports it),
    the rest as in Sight."""

    used: float | None
    load: float | None
    surge: float | None
    is_pressed: bool


class Lending:
    """What the policy comes to at any moment, and what is done about it."""

    def __init__(
        self, paths: Paths, policy: Callable[[], LendingPolicy], guests: Guests, own: Callable[[], Iterable[int]],
        last_resort: Callable[[str, str], Any], changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """own: pids of farhome's own programs besides the daemon. last_resort: asks the home of a guest (its key, and the reason) to take
        it, and to make a checkpoint of it. changed: is called when there is another stage."""
        self._paths = paths
        self._policy = policy
        self._guests = guests
        self._last_resort = last_resort
        self._changed = changed
        self.state = OwnerState()
        self.sight = Sight()
        self._is_called = (paths.run / "owner").exists()
        self._wake = asyncio.Event()
        self._input = InputWatch(self._used)
        self._pressure: PressureWatch | None = None
        self._own_load = OwnLoad(self._cpu_of_node, self._cpu_of_guests, Programs(own).cpu)
        self._figures_in = directory()
        self._figures: dict[str, float | None] = {}
        self._figures_at = float("-inf")
        self._battery: tuple[bool | None, float | None] = (None, None)
        self._cores = sampling.cores()
        self._looked = float("-inf")
        self._used_at: float | None = None
        self._closed_at = float("-inf")
        self._closed_why: str | None = None
        self._bounds: Bounds | None = None
        self._breathed = 0.0
        self._evicting: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    # -- life --------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Looks until close()."""
        self._guests.groups.prepare()
        self.apply_policy()
        self.poll()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(shared_pause(self._pause(), asyncio.get_running_loop().time())):
                    await self._wake.wait()
            self._wake.clear()
            try:
                self._look_again()
            except Exception:
                log.exception("the look at the owner met a fault")

    def _pause(self) -> float:
        if self.state.stage in (Stage.EVICTING, Stage.LATE):
            return LEAVING
        return QUICK if self.state.is_throttled or (self._policy().watches_owner and self._guests.all()) else SLOW

    def apply_policy(self) -> None:
        """The policy is another one."""
        rules = self._policy().owner
        self._input.configure(rules.input, rules.logins)
        if rules.pressure and self._pressure is None:
            self._pressure = PressureWatch()
            self._pressure.start()
        elif not rules.pressure and self._pressure is not None:
            self._pressure.close()
            self._pressure = None
        self._own_load.forget()
        self._looked = self._closed_at = float("-inf")
        self._bounds = None
        self._bound()
        self._guests.bound_memory()
        self._wake.set()

    def _used(self) -> None:
        """An input device was used."""
        self._wake.set()

    def close(self) -> None:
        """Lets guests go on: while there is no daemon, nobody would."""
        for task in (self._task, self._evicting):
            if task is not None:
                task.cancel()
        self._guests.stand_still(False)
        self._input.close()
        if self._pressure is not None:
            self._pressure.close()

    # -- by hand -----------------------------------------------------------------------------------------------------------

    @property
    def is_called(self) -> bool:
        """Whether the owner has said that he is back; kept until he says that he is away, or the node goes down."""
        return self._is_called

    def call(self, back: bool) -> None:
        """mosctl owner back, or away. Errors: OSError."""
        path = self._paths.run / "owner"
        path.touch() if back else path.unlink(missing_ok=True)
        self._is_called = back
        self.poll()

    # -- senses ------------------------------------------------------------------------------------------------------------

    def _cpu_of_node(self) -> float | None:
        return self._guests.groups.cpu_of_node()

    def _cpu_of_guests(self) -> float | None:
        return self._guests.groups.cpu()

    def _slow_senses(self) -> None:
        now = time.monotonic()
        if now - self._figures_at < SLOW_SENSES:
            return
        self._figures_at, self._battery, self._cores = now, battery(), sampling.cores()
        for resource in ("cpu", "memory", "io"):
            reported = figures(file_of(resource, self._figures_in))
            self._figures[f"pressure_{resource}"] = reported[0] if reported is not None else None

    def surroundings(self, memory: tuple[int, int], load: float) -> Surroundings:
        """Return what admission has to know besides the guests. memory: free and in all, in bytes; load in load units."""
        self._slow_senses()
        clock = time.localtime()
        on_battery, level = self._battery
        values: dict[str, float | None] = {
            **self._figures, "battery": level, "cores": self._cores, "hour": clock.tm_hour + clock.tm_min / 60, "load": load,
            "memory_free": memory[0], "memory_total": memory[1], "on_battery": None if on_battery is None else float(on_battery),
            "owner_idle": self.sight.idle, "owner_load": self.sight.load, "weekday": clock.tm_wday + 1,
        }  # fmt: skip
        return Surroundings(memory[0], on_battery, self.state.withholds, values)

    def _glance(self) -> _Glance:
        load, surge = self._own_load.sample(time.monotonic())
        return _Glance(self._input.last_use(), load, surge, self._pressure is not None and self._pressure.is_pressed())

    def _is_calm(self, seen: _Glance) -> bool:
        """Whether nothing follows from what is seen: the node lends still, and all the rest has been looked at a moment ago."""
        limit = self._policy().owner.busy_load
        return (
            self.state.stage is Stage.LENDING and time.monotonic() - self._looked < CLOSED_PERIOD
            and seen.used == self._used_at and not seen.is_pressed
            and (limit is None or max(seen.load or 0.0, seen.surge or 0.0) <= limit)
        )  # fmt: skip

    def _sight(self, seen: _Glance) -> Sight:
        self._slow_senses()
        return Sight(
            idle=max(0.0, time.time() - seen.used) if seen.used is not None else None,
            load=seen.load,
            surge=seen.surge,
            is_pressed=seen.is_pressed,
            is_called=self.is_called,
            closed=self._closed(self._policy()),
            guests=len(self._guests.all()),
        )

    def _closed(self, policy: LendingPolicy) -> str | None:
        """Hours, battery and conditions change slowly, and what they are about is not looked at more often than it must be."""
        now = time.monotonic()
        if now - self._closed_at >= CLOSED_PERIOD:
            self._closed_at, self._closed_why = now, policy.closed(self._guests.lending_state())
        return self._closed_why

    # -- what follows ------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Senses the owner, and does at once what follows."""
        self._follow(self._glance())

    def _look_again(self) -> None:
        """The same, if anything may follow: many times a second nothing does."""
        seen = self._glance()
        if self._is_calm(seen):
            self.sight = replace(self.sight, load=seen.load, surge=seen.surge)
        else:
            self._follow(seen)

    def _follow(self, seen: _Glance) -> None:
        policy, now = self._policy(), time.monotonic()
        self._looked, self._used_at, self.sight = now, seen.used, self._sight(seen)
        before, self.state = self.state, step(self.state, self.sight, policy.owner, policy.idle_after, now)
        if self.state.stage is not before.stage:
            self._report(before)
        self._bound()
        if self.state.is_frozen:
            self._hold_still(now)
        elif before.is_frozen:
            self._guests.stand_still(False)
        if self.state.stage is not before.stage:
            self._changed()
        leaves = self.state.stage in (Stage.EVICTING, Stage.LATE)
        self._guests.resting.leave(leaves)
        if self.state.stage is Stage.EVICTING and self._is_time_short(now):
            self._guests.resting.weigh(False)
        if self._evicting is not None and (self._evicting.done() or not leaves):
            self._evicting.cancel()
            self._evicting = None
        if leaves and self._evicting is None:
            self._evicting = asyncio.get_running_loop().create_task(self._evict())

    def _report(self, before: OwnerState) -> None:
        why = f": {self.state.reason}" if self.state.stage is not Stage.LENDING else ""
        # A suspicion is nothing to report, as long as it is no more than that.
        level = logging.DEBUG if {before.stage, self.state.stage} == {Stage.LENDING, Stage.SUSPECTED} else logging.INFO
        log.log(level, "%s -> %s with %d guests%s", before.stage.value, self.state.stage.value, self.sight.guests, why)

    def _bound(self) -> None:
        policy, cores = self._policy(), self._cores
        if self.state.is_throttled:
            # Who is to stand still must run for a moment to do so, and who leaves has work to do: in the idle class they might never come
            # to it beside an owner who uses all processors. More than their share they cannot take.
            is_prompt = self.state.is_frozen
            most = min(policy.owner.throttle * cores, policy.processors(cores) or cores)
            bounds = Bounds(most, not is_prompt, policy.max_memory, is_prompt)
        else:
            bounds = Bounds(policy.processors(cores), policy.weight == "idle", policy.max_memory)
        most_memory = int(policy.memory_share * sampling.memory()[1])
        bounds = replace(bounds, most_memory=most_memory, tasks=cgroups.most_tasks())
        if bounds != self._bounds:
            self._bounds = bounds
            self._guests.groups.bound(bounds)

    def _hold_still(self, now: float) -> None:
        """Those that are not on their way stand still, but for a breath."""
        if now - self._breathed >= BREATH_PERIOD:
            self._breathed = now
            if self.state.since != now:
                self._guests.stand_still(False)
                asyncio.get_running_loop().call_later(BREATH, self._wake.set)
                return
        if now - self._breathed >= BREATH or self.state.since == now:
            self._guests.stand_still(True)

    def _is_time_short(self, now: float) -> bool:
        return now - self.state.since > self._policy().owner.deadline * HURRY

    async def _evict(self) -> None:
        """Sends all guests away, a few at a time; those that are late as the policy says. They stand still until their homes begin with
        it: their remotes say so."""
        rules, guests, reason = self._policy().owner, self._guests, self.state.reason
        is_late, turns = self.state.stage is Stage.LATE, asyncio.Semaphore(AT_ONCE)
        end = time.monotonic() + rules.deadline
        await guests.resting.settled()

        async def one(key: str) -> None:
            async with turns:
                left = end - time.monotonic()
                if left <= 0 or not self.state.is_throttled or key not in guests.here():
                    return
                if is_late and rules.then == "kill":
                    await guests.end(key)
                elif is_late and rules.then == "checkpoint":
                    await self._last_resort(key, reason)
                elif not is_late:
                    await guests.expel(key, reason, left)

        await asyncio.gather(*(one(key) for key in guests.here()), return_exceptions=True)
        if is_late and guests.here():
            log.warning("%d guests are still here: %s", len(guests.here()), ", ".join(guests.here()))
        await asyncio.sleep(rules.deadline if is_late else RETRY)

    def row(self) -> dict[str, Any]:
        """Return what `mosctl owner` shows."""
        return {
            "stage": self.state.stage.value, "since": max(0.0, time.monotonic() - self.state.since) if self.state.since else 0.0,
            "reason": self.state.withholds or "", "called": self.is_called, "idle": self.sight.idle, "load": self.sight.load,
            "pressed": self.sight.is_pressed, "pressure_triggers": self._pressure is not None and self._pressure.is_armed,
            "on_battery": self._battery[0], "guests": self.sight.guests,
        }  # fmt: skip
