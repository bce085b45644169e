"""The plans of the claimants in a search, and the faults around them. Lengths are in ticks."""

from __future__ import annotations

from typing import NamedTuple

from tests.exhaustive.run import Plan


class Scene(NamedTuple):
    plans: tuple[Plan, ...]
    by_hand: tuple[str, ...] = ()
    """Actions of an operator, once each, at any time."""
    clock_stands_still: bool = False
    """The store's clock shows the same time at each grant, like a clock of low resolution."""

    @property
    def has_retries(self) -> bool:
        return any(plan.retries for plan in self.plans)


SCENES = {
    "quiet": Scene((Plan(2), Plan(2))),
    "minimum": Scene((Plan(2, 1, extensions=(1,)), Plan(2, 1))),
    "minimum, late extension": Scene((Plan(2, 1, extensions=(2,)), Plan(2, 1))),
    "minimum, sent twice": Scene((Plan(2, 1, retries=True), Plan(2, 1))),
    "clock stands still": Scene((Plan(2), Plan(2)), clock_stands_still=True),
    "retries": Scene((Plan(2, retries=True), Plan(2))),
    "extensions": Scene((Plan(1, extensions=(1, 2)), Plan(1))),
    "by hand": Scene((Plan(1, extensions=(1,)), Plan(1)), ("delete", "force release")),
    "take over": Scene((Plan(2, extensions=(1,)), Plan(2, by_force=True)), ("force release",)),
    "take over of a deleted record": Scene((Plan(2), Plan(2, by_force=True)), ("delete",)),
    "two take-overs": Scene((Plan(1, by_force=True), Plan(1, by_force=True, retries=True))),
    "late": Scene((Plan(1, extensions=(2,), retries=True), Plan(1))),
    "late, by hand": Scene((Plan(2, retries=True), Plan(2)), ("force release",)),
    "extensions sent twice": Scene((Plan(2, extensions=(1, 2), retries=True),)),
    "one fire time": Scene((Plan(1, has_fire_time=True, retries=True), Plan(1, has_fire_time=True))),
    "one fire time, by force": Scene(
        (Plan(1, has_fire_time=True, retries=True), Plan(1, has_fire_time=True, by_force=True))
    ),
    "recover": Scene((Plan(1, has_fire_time=True, extensions=(1,)), Plan(1, has_fire_time=True, recovers=True))),
    "recover, sent twice": Scene(
        (Plan(1, has_fire_time=True, retries=True), Plan(1, has_fire_time=True, recovers=True, retries=True))
    ),
    "recover, minimum": Scene((Plan(2, 1, has_fire_time=True), Plan(1, has_fire_time=True, recovers=True))),
    "recover, by hand": Scene(
        (Plan(1, has_fire_time=True), Plan(1, has_fire_time=True, recovers=True)), ("force release", "delete")
    ),
    "recover, later fire time": Scene(
        (
            Plan(1, has_fire_time=True),
            Plan(1, has_fire_time=True, recovers=True),
            Plan(1, has_fire_time=True, is_later=True),
        )
    ),
    "two recoveries": Scene(
        (
            Plan(1, has_fire_time=True),
            Plan(1, has_fire_time=True, recovers=True),
            Plan(1, has_fire_time=True, recovers=True),
        )
    ),
    "three": Scene((Plan(1), Plan(1), Plan(1))),
}
