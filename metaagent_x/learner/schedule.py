"""Which roles learn at a step."""

from __future__ import annotations

from typing import Literal

Role = Literal["designer", "executor"]
Kind = Literal["stagewise", "coupled", "designer_only", "executor_only"]

BOTH: frozenset[Role] = frozenset({"designer", "executor"})


def active_roles(
    step: int, kind: Kind = "stagewise", stage_length: int = 30, first: Role = "executor"
) -> frozenset[Role]:
    """The roles that learn at `step`.

    "stagewise" is the paper's co-evolution: stages of `stage_length` steps, role by floor(step / stage_length) mod 2,
    `first` in stage 0. It depends on `step` alone, so a resumed run is in the stage that it left.

    Args:
      step: steps finished before this one, from 0.
      kind: how the roles take turns.
      stage_length: K, steps per stage ("stagewise" only).
      first: the role of stage 0 ("stagewise" only).

    Raises:
      ValueError: a negative step, a stage shorter than one step, an unknown kind or role.
    """
    if step < 0:
        raise ValueError(f"step={step} is negative; steps count from 0")
    if stage_length < 1:
        raise ValueError(f"stage_length={stage_length}; a stage must last at least 1 step")
    if first not in BOTH:
        raise ValueError(f"first={first!r} is no role; use 'designer' or 'executor'")
    if kind == "coupled":
        return BOTH
    if kind == "designer_only":
        return frozenset({"designer"})
    if kind == "executor_only":
        return frozenset({"executor"})
    if kind == "stagewise":
        return frozenset({first}) if (step // stage_length) % 2 == 0 else BOTH - {first}
    raise ValueError(f"kind={kind!r} is not one of stagewise, coupled, designer_only, executor_only")
