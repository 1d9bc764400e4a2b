"""What one execution of a design leaves behind. Plain data, written only by the parent process."""

from __future__ import annotations

import dataclasses
from typing import Literal

from metaagent_x.tasks.task import Verdict

TEST_RUNS = 6  # of `run_tests` in one execution
OVERLAP_CHARS = 24  # of a completion, found in a later text: that text has it from there
NO_PUBLIC_TESTS = "no public tests"  # the one failure that `run_tests` reports where there is nothing to run


class CallRefused(ValueError):
    """A chat refuses a request that no engine could serve, for a reason of the script's making. The script is told."""


@dataclasses.dataclass(frozen=True)
class CallRequest:
    """One agent asks the policy for one completion.

    Attributes:
      path: branch indices and the number within the branch, "0.2.1"; unique within an execution.
      agent: the agent's name.
      role_prompt: the system text of the agent.
      conversation: id of the agent's memory, "" for a stateless agent. Later calls with the same id extend the same
        token sequence.
      messages: the new user texts of this call, oldest first (one for nearly every call).
    """

    path: str
    agent: str
    role_prompt: str
    conversation: str
    messages: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Call:
    """A finished request: prompt ids in, completion ids and their log-probs out.

    `text_tokens`: what the job's tokenizer makes of the text, where the engine gave no ids.
    """

    path: str
    agent: str
    role_prompt: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    version: int
    text: str
    seed: int = 0
    conversation: str = ""
    messages: tuple[str, ...] = ()
    prompt_cut: bool = False
    text_tokens: int = 0

    @property
    def sampled(self) -> int:
        """Tokens of the completion."""
        return len(self.completion_ids) or self.text_tokens

    def __post_init__(self) -> None:
        if len(self.completion_ids) != len(self.logprobs):
            raise ValueError(
                f"call {self.path!r} of agent {self.agent!r}: {len(self.completion_ids)} completion ids but "
                f"{len(self.logprobs)} log-probs; an engine must return one log-prob for every sampled id"
            )


@dataclasses.dataclass(frozen=True)
class ToolRun:
    """One run of `run_python` or `run_tests`, as the parent saw it."""

    path: str
    tool: Literal["run_python", "run_tests"]
    program: str
    stdin: str
    output: str
    status: str


@dataclasses.dataclass
class Execution:
    """One run of a design.

    Attributes:
      calls: finished calls, sorted by path.
      tools: tool runs, sorted by path.
      answer: the text that is graded.
      status: "ok"; "budget" (ended early, what there was is graded); "wall", "cpu", "memory", "crash" (reward 0, calls
        still count); "invalid" (a method's design could not be run: reward 0); "void" (infrastructure failed: out of
        every mean and every loss).
      reason: one line for a person: the exception, the limit, the failing engine.
      flags: e.g. "answer_unset", "answer_not_from_agents", "no_calls", "prompt_cut", "truncated".
      links: what structures report, (from path, to path, how). "pass", "judge", "tests": the later call was shown the
        earlier one's text. "vote": both took part in a vote that the second won ("" if none did). "answer": this text
        became the answer (to path "").
      structure: what `classify` says of it.
      verdict: None until graded.
      designer: the call that wrote the design, where a method (`baselines`) asked for one. script: what was run.
    """

    calls: list[Call] = dataclasses.field(default_factory=list)
    tools: list[ToolRun] = dataclasses.field(default_factory=list)
    answer: str = ""
    status: str = "ok"
    reason: str = ""
    flags: set[str] = dataclasses.field(default_factory=set)
    links: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    structure: str = ""
    verdict: Verdict | None = None
    designer: Call | None = None
    script: str = ""

    @property
    def void(self) -> bool:
        return self.status == "void" or (self.verdict is not None and self.verdict.void)

    @property
    def reward(self) -> float:
        """Reward of the verdict; 0.0 while ungraded or void."""
        return 0.0 if self.void or self.verdict is None else self.verdict.reward


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of one execution. The parent owns and counts them.

    Branches that run at once get even shares of the calls, tokens, tool runs and test runs that are left. A branch
    whose share is used up waits until none of them can go on; then what is left is shared out again among those that
    wait. The execution ends with status "budget" when that helps nobody. So which calls are made never depends on who
    is quick (`shares.py`).

    Attributes:
      calls: model calls, never exceeded. depth: nesting of structures.
      tokens: sampled tokens over all calls. A call is started while its branch has a token left, and finished: the sum
        exceeds this by less than one completion, or in branches by less than one for each that holds a share.
      tool_runs: runs of `run_python` and `run_tests` together, never exceeded; `run_tests` alone at most 6.
      wall_s, cpu_s: seconds. memory_mb: MiB of the script process.
    """

    calls: int = 32
    tokens: int = 131_072
    depth: int = 6
    tool_runs: int = 16
    wall_s: float = 1200.0
    cpu_s: float = 10.0
    memory_mb: int = 512
