"""The dialect of the published checkpoint: its `workflow` package, on the primitives of our language.

A script of this form imports the package's names, builds nodes and runs a workflow, and does so unmodified:

  from workflow import AgentNode, Workflow
  workflow = Workflow(name="one")
  workflow.add_node(AgentNode(name="Solver", system_prompt="You solve problems."))
  result = workflow.run(question)
  print(result.content)

Names, parameters and results are those of the package. Where it was wrong or unsafe, ours differs on purpose:

- The question is the task, whatever the script re-typed. Text that goes back to a reply is shown besides it.
- The answer is the content of the last run, not what is printed.
- Members of an ensemble, and of a round of a debate, run at once, under paths that do not depend on who is quick.
- Every agent is shown what the nodes before it delivered, inside of patterns too.
- In code tasks a program in a reply is the answer, never a tool call.
- Conditional workflows, loops and graphs work.
- Programs are run by the host (`tools.py`).
"""

from __future__ import annotations

import itertools
import os
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from metaagent_x.mas.dialects import tools
from metaagent_x.mas.dialects.context import PLAY, Context, Message, MessageType
from metaagent_x.mas.dialects.nodes import (
    AgentNode,
    DebateNode,
    EnsembleNode,
    ReflectionNode,
    RouterNode,
    WorkflowNode,
    create_keyword_router,
)
from metaagent_x.mas.language import Language

MODULES = (
    "workflow", "workflow.core", "workflow.workflow", "workflow.graph", "workflow.nodes", "workflow.nodes.agent_node",
    "workflow.nodes.ensemble_node", "workflow.nodes.reflection_node", "workflow.nodes.debate_node",
    "workflow.nodes.router_node", "utils", "utils.environments", "utils.environments.math_env",
    "utils.environments.search_env", "utils.environments.code_env",
)  # fmt: skip
GIVEN = ("question", "ai_client", "__file__")  # besides our own names, what a script finds without an import


def play(language: Language) -> dict[str, Any]:
    """Begins the script of this process: makes the package importable. Returns the names that the script finds."""
    PLAY.language = language
    names = {**language.names(), **EXPORTS, "__all__": list(EXPORTS), "__path__": []}
    for path in MODULES:
        module = types.ModuleType(path)
        module.__dict__.update(names)
        sys.modules[path] = module
        parent, _, name = path.rpartition(".")
        if parent:
            setattr(sys.modules[parent], name, module)
    tools.replace_subprocesses()
    os.environ["TASK_TYPE"] = language.kind
    return dict(zip(GIVEN, (language.task, Client(), os.path.join(os.getcwd(), "script.py")), strict=True))


def outcome() -> Any:
    """The content of the last run; None if there was none.

    Raises:
      Exception: what went wrong in it.
    """
    result = PLAY.result
    if result is not None and result.problem is not None:
        raise result.problem
    return None if result is None else result.content


class Workflow(WorkflowNode):
    """Nodes in order, on one context; ends at the first error. Itself a node."""

    def __init__(self, name: str = "workflow", ai_client: Any = None, **config: Any):
        super().__init__(name, **config)
        self.ai_client = ai_client or Client()
        self.steps: list[tuple[WorkflowNode, Callable[[Context], Any] | None]] = []

    @property
    def nodes(self) -> list[WorkflowNode]:
        return [node for node, _ in self.steps]

    def add_node(self, node: WorkflowNode, condition: Callable[[Context], Any] | None = None) -> Workflow:
        """Adds a node; with a condition it is left out where that is false or fails."""
        self.steps.append((node, condition))
        return self

    def add_nodes(self, nodes: Iterable[WorkflowNode]) -> Workflow:
        self.steps += [(node, None) for node in nodes]
        return self

    def process(self, context: Context) -> Message:
        return self.run_with_context(context.copy())

    def run_with_context(self, context: Context) -> Message:
        for node, condition in self.steps:
            if condition is None or _holds(condition, context):
                result = node(context)
                if result.message_type is MessageType.ERROR:
                    return result
        return context.messages[-1]


class ConditionalWorkflow(Workflow):
    """A workflow whose nodes have conditions."""


class LoopWorkflow(Workflow):
    """Repeats its nodes while its condition holds, at most `max_iterations` times."""

    def __init__(self, name: str = "loop_workflow", max_iterations: int = 10, **config: Any):
        super().__init__(name, **config)
        self.max_iterations = max_iterations
        self.loop_condition: Callable[[Context], Any] | None = None

    def set_loop_condition(self, condition: Callable[[Context], Any]) -> LoopWorkflow:
        self.loop_condition = condition
        return self

    def run_with_context(self, context: Context) -> Message:
        if self.loop_condition is None:
            raise ValueError(f"loop {self.name!r} has no condition; call set_loop_condition(function of the context)")
        result = context.messages[-1]
        for _ in range(self.max_iterations):
            result = super().run_with_context(context)
            if result.message_type is MessageType.ERROR or not _holds(self.loop_condition, context):
                break
        return result


class AgentGraph(WorkflowNode):
    """Named nodes, played along edges from the entry point to a finish point, or to where no edge leads on."""

    def __init__(self, name: str = "agent_graph", max_steps: int = 50, **config: Any):
        super().__init__(name, **config)
        self.max_steps, self.entry_point = max_steps, ""
        self.nodes: dict[str, WorkflowNode] = {}
        self.edges: list[tuple[str, str, Callable[[Context], Any] | None]] = []
        self.routes: dict[str, Callable[[Context], Any]] = {}
        self.finish_points: list[str] = []

    def add_node(self, name: str, node: WorkflowNode) -> AgentGraph:
        self.nodes[name] = node
        return self

    def add_edge(self, source: str, target: str, condition: Callable[[Context], Any] | None = None) -> AgentGraph:
        """Of the edges that leave a node the first whose condition holds is followed."""
        self.edges.append((self._known(source), self._known(target), condition))
        return self

    def add_conditional_edges(self, source: str, routing_func: Callable[[Context], Any]) -> AgentGraph:
        """`routing_func(context)` names the node that follows `source`; any other value ends the run."""
        self.routes[self._known(source)] = routing_func
        return self

    def set_entry_point(self, node_name: str) -> AgentGraph:
        self.entry_point = self._known(node_name)
        return self

    def set_finish_point(self, node_name: str) -> AgentGraph:
        self.finish_points.append(self._known(node_name))
        return self

    def process(self, context: Context) -> Message:
        if not self.entry_point:
            raise ValueError(f"graph {self.name!r} has no entry point; call set_entry_point(name)")
        context, at = context.copy(), self.entry_point
        for _ in range(self.max_steps):
            result = self.nodes[at](context)
            if result.message_type is MessageType.ERROR or at in self.finish_points:
                break
            at = self._next(at, context)
            if at is None:
                break
        return context.messages[-1]

    def _next(self, at: str, context: Context) -> str | None:
        if at in self.routes:
            name = self.routes[at](context)
            return name if name in self.nodes else None
        edges = ((target, condition) for source, target, condition in self.edges if source == at)
        return next((target for target, condition in edges if condition is None or _holds(condition, context)), None)

    def _known(self, name: str) -> str:
        if name not in self.nodes:
            raise ValueError(f"graph {self.name!r} has no node {name!r}; it has: {', '.join(self.nodes) or 'none'}")
        return name


def create_simple_chain(*nodes: tuple[str, WorkflowNode]) -> AgentGraph:
    """A graph of (name, node) pairs, one after another."""
    graph, names = AgentGraph(), [name for name, _ in nodes]
    for name, node in nodes:
        graph.add_node(name, node)
    for source, target in itertools.pairwise(names):
        graph.add_edge(source, target)
    return graph.set_entry_point(names[0]).set_finish_point(names[-1])


def _holds(condition: Callable[[Context], Any], context: Context) -> bool:
    try:
        return bool(condition(context))
    except Exception:
        return False


class Client:
    """What the package calls the client of the model. `chat` costs one call."""

    def chat(self, messages: Sequence[dict[str, Any]], *_: Any, **__: Any) -> tuple[str, int, int]:
        """The reply to a system text and user texts; the numbers of tokens are not known here."""
        role, asked = (
            "\n\n".join(str(m["content"]) for m in messages if (m["role"] == "system") == system)
            for system in (True, False)
        )
        message = AgentNode("client", role)(asked)
        if message.problem is not None:
            raise message.problem
        return message.content, 0, 0


EXPORTS: dict[str, Any] = {
    made.__name__: made
    for made in (
        Message, MessageType, Context, WorkflowNode, AgentNode, EnsembleNode, ReflectionNode, DebateNode, RouterNode,
        create_keyword_router, Workflow, ConditionalWorkflow, LoopWorkflow, AgentGraph, create_simple_chain,
        tools.ToolRegistry, tools.MathEnvironment, tools.CodeEnvironment, tools.SearchEnvironment, tools.python_execute,
    )
}  # fmt: skip
