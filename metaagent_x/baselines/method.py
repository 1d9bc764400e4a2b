"""What a method is, and what every method is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from metaagent_x.mas.records import Call, CallRequest, Execution, ToolRun
from metaagent_x.rollout.engine import Engine
from metaagent_x.rollout.measure import EVALUATION_STEP
from metaagent_x.rollout.play import Player, Settings, with_rollout
from metaagent_x.tasks.task import Task


class MethodError(ValueError):
    """A method that does not exist, or an option that it does not have. Bad input."""


class Method(Protocol):
    """One way to answer a task. It never sees a rubric; whoever asks it grades.

    Attributes:
      needs: a method whose results on the same tasks must be there first; "" for none.
    """

    needs: str

    async def solve(self, task: Task, sample: int = 0) -> Execution:
        """Answers a task, ungraded, with every call that it cost.

        The same (settings, task, sample) makes the same requests with the same seeds. A design that cannot be run is
        an Execution of status "invalid", what an engine spoilt one of status "void".
        """
        ...


@dataclasses.dataclass
class Means:
    """What every method is given, so that a comparison is fair: the same engines, lengths and sampling.

    Attributes:
      engines: of each role. config: settings as made by `metaagent_x.config.base`, with the sampling of this
        evaluation in `rollout`.
      members: how many samples a vote takes if its method is not told. vote_temperature: of such samples where
        `rollout.temperature` is 0: greedy ones would be copies.
      spent: (method, task id, sample) -> tokens that it sampled there, None if that is not known.
      watch: see `Player`.
    """

    engines: Mapping[str, Engine]
    config: Settings
    members: int = 5
    vote_temperature: float = 0.7
    spent: Callable[[str, str, int], int | None] = lambda method, task_id, sample: None
    watch: Callable[[CallRequest | Call | ToolRun], object] | None = None
    _players: list[Player] = dataclasses.field(default_factory=list, init=False, repr=False)

    def player(self, **rollout: Any) -> Player:
        """A player of these engines; `rollout`: settings that differ for it. A run's own fixed design is left out.

        All draw from the one stream of seeds of evaluations, so that methods and checkpoints are paired.
        """
        settings = with_rollout(self.config, **{"design": "", **rollout})
        self._players.append(Player(self.engines, settings, EVALUATION_STEP, watch=self.watch))
        return self._players[-1]

    def check(self) -> None:
        """Raises what a defect of an engine (not an EngineFailure) raised; what it spoilt is void."""
        for player in self._players:
            if player.defect:
                raise player.defect
