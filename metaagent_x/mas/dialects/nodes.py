"""Nodes of the workflow dialect: an agent, and the patterns over nodes. A node turns a context into a message."""

from __future__ import annotations

import itertools
import json
import logging
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from metaagent_x.mas.dialects.context import PLAY, Ask, Context, Message, MessageType, question, view
from metaagent_x.mas.dialects.tools import ToolRegistry, python_execute
from metaagent_x.mas.line import Branch, passed, path_of
from metaagent_x.mas.script import FILE
from metaagent_x.mas.structures import Agent
from metaagent_x.mas.tools import head_and_tail

STRATEGIES = ("majority_vote", "weighted_vote", "consensus")
SIMILAR = 0.75  # two texts with more of their trigrams in common say the same

# What agents read in this dialect only; all else is worded by the prompt set.
TOOLS = "\n\nYou can use these tools:\n"
HOW_TO_CALL = (
    'To use one, write <tool_call>{"name": "...", "arguments": {...}}</tool_call> and end your turn; its result is '
    "shown to you."
)
CODE_RUNS = " A ```python block in a turn without a final answer is run too."
NO_TOOLS_LEFT = "No further tool is run. Give your final answer now."

TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
PYTHON_FENCE = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)\b", re.MULTILINE | re.IGNORECASE)
PYTHON_TOOLS = ("python_execute", "execute_code")
VERDICT = re.compile(r"verdict\W*(in)?correct\b", re.IGNORECASE)
ENDS_CORRECT = re.compile(r"(?<!NOT )\bCORRECT\W*\Z")
SLOT = re.compile(r"\{\{|\}\}|\{(question|response|reflection|history)\}")


class WorkflowNode:
    """Base of all nodes. A script may derive its own and define `process`."""

    def __init__(self, name: str = "node", **config: Any):
        self.name, self.config = name, config
        self.logger = logging.getLogger(f"{type(self).__name__}.{name}")

    def process(self, context: Context) -> Message:
        raise NotImplementedError(f"{type(self).__name__} does not define process(self, context)")

    def __call__(self, context: Context | str) -> Message:
        """Processes a context and adds the result to it. An exception becomes a message of type ERROR."""
        context = context if isinstance(context, Context) else Context([Message(context, MessageType.USER_INPUT)])
        try:
            result: Any = self.process(context)
            message = result if isinstance(result, Message) else Message(result)
        except Exception as problem:
            said = {"error": f"{type(problem).__name__}: {problem}", "node": self.name}
            message = Message(said, MessageType.ERROR, problem=problem)
        message.sender = message.sender or self.name
        context.add_message(message)
        return message

    def run(self, input_message: Any, initial_state: dict[str, Any] | None = None) -> Message:
        """Plays the node on the question. What the last run gives is the script's answer."""
        context = Context([Message(question(input_message), MessageType.USER_INPUT)], dict(initial_state or {}))
        context.state["workflow"] = self
        PLAY.result = result = self(context)
        if result.problem is not None:
            _add_line_of_script(result.problem)
        return result


def _add_line_of_script(problem: Exception) -> None:
    """Puts the line that started the run on top of the traceback, as if the exception had come that far."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename != FILE:
        frame = frame.f_back
    problem.__traceback__ = types.TracebackType(problem.__traceback__, frame, frame.f_lasti, frame.f_lineno)


def _ask(node: WorkflowNode, context: Context, ask: Ask | None = None) -> str:
    """The text that a member gives: in a copy of the context, or in one that holds only what it is asked.

    Raises:
      Exception: what went wrong in it.
    """
    inner = context.copy()
    if ask is not None:
        inner.messages = [Message(ask, MessageType.USER_INPUT)]
    message = node(inner)
    if message.message_type is MessageType.ERROR:
        raise message.problem or RuntimeError(str(message.content))
    return message.content if isinstance(message.content, str) else str(message.content)


def _open_branches() -> Callable[[int], Branch]:
    """Takes the next number of the current branch; branch i under it is opened by the function."""
    outer = PLAY.language.branch
    number = outer.take()
    return lambda i: Branch((*number, i), outer)


def _within(branch: Branch, work: Callable[[], Any]) -> Any:
    return PLAY.language.within(branch, lambda _: work(), "")


def _at_once(branches: Sequence[Branch], works: Sequence[Callable[[], str]]) -> Sequence[Any]:
    """Does all works at the same time, each in its branch. Returns texts, or what went wrong, in order."""

    def attempt(work: Callable[[], str]) -> Callable[[str], Any]:
        def run(_: str) -> Any:
            try:
                return work()
            except Exception as problem:
                return problem

        return run

    return PLAY.language.parallel([attempt(w) for w in works], [""] * len(works), branches)


class AgentNode(WorkflowNode):
    """One agent. With tools it may use them in `max_turns` turns; then it must give its final answer.

    A tool is called by a `<tool_call>`, and in math by a Python block in a turn without a final answer. In code a block
    is the answer.
    """

    def __init__(
        self, name: str, system_prompt: str = "", tool_registry: ToolRegistry | None = None, ai_client: Any = None,
        max_turns: int = 10, **config: Any,
    ):  # fmt: skip
        super().__init__(name, **config)
        self.system_prompt, self.ai_client, self.max_turns = system_prompt, ai_client, max_turns
        self.tool_registry = ToolRegistry() if tool_registry is None else tool_registry

    def process(self, context: Context) -> Message:
        language, remembers = PLAY.language, bool(self.tool_registry.list_tools())
        role = language.prompts.own_role(str(self.system_prompt) + self._manual(), language.kind)
        agent, ask = Agent(language, str(self.name), role, memory=False), view(context)
        if remembers:  # its memory is named after the path of its first call, the same in every run
            agent.conversation = "m" + ".".join(map(str, (*language.branch.prefix, language.branch.number)))
        reply, turns = _say(agent, ask), self.max_turns
        while remembers and turns >= 0 and (calls := self._tool_calls(reply)):
            ask = Ask("\n\n".join(self._use(*call) for call in calls) if turns else NO_TOOLS_LEFT)
            reply, turns = _say(agent, ask), turns - 1
        return Message(reply, metadata={"agent_name": self.name, "tokens": 0})  # which the host knows alone

    def _manual(self) -> str:
        """What is appended to the system prompt of an agent with tools."""
        lines = []
        for tool in (schema["function"] for schema in self.tool_registry.get_tool_schemas()):
            arguments = tool["parameters"].get("properties", tool["parameters"])
            lines.append(f"- {tool['name']}({', '.join(arguments)}): {tool['description']}\n")
        runs = CODE_RUNS if PLAY.language.kind == "math" else ""
        return TOOLS + "".join(lines) + HOW_TO_CALL + runs if lines else ""

    def _tool_calls(self, reply: str) -> list[tuple[str, Any]]:
        """Names and arguments of the tools that a reply calls; as arguments a text that says what is wrong."""
        if calls := TOOL_CALL.findall(reply):
            return [_read_tool_call(call) for call in calls]
        language = PLAY.language
        if language.kind != "math" or not PYTHON_FENCE.search(reply) or language.answer_of(reply):
            return []
        name = next((tool for tool in PYTHON_TOOLS if self.tool_registry.get_tool(tool)), "")
        return [(name, {"code": code})] if (code := language.code_of(reply)) else []

    def _use(self, name: str, arguments: Any) -> str:
        """One tool call as its agent sees it. Whatever goes wrong is told as text."""
        try:
            if not isinstance(arguments, dict):
                raise ValueError(arguments)
            result = self.tool_registry.call_tool(name, arguments) if name else python_execute(**arguments)
        except Exception as problem:
            result = f"error: {type(problem).__name__}: {problem}"
        return f"Result of {name or 'the program'}:\n{head_and_tail(str(result))}"


def _say(agent: Agent, ask: Ask) -> str:
    PLAY.language.branch.sources = ask.sources
    reply = PLAY.language.call(agent, str(ask))
    PLAY.replies.append(reply)
    return reply


def _read_tool_call(text: str) -> tuple[str, Any]:
    try:
        call = json.loads(text, strict=False)
        arguments = call.get("arguments") or call.get("parameters") or {}
        return str(call["name"]), json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
    except (ValueError, KeyError, AttributeError, RecursionError) as problem:
        return "the tool call", f'it has not the form {{"name": ..., "arguments": {{...}}}}: {problem}'


class EnsembleNode(WorkflowNode):
    """Members at once, then one of their texts, or a judge's.

    "majority_vote": the most frequent answer; if answers differ and there is a judge (`consensus_agent`), the judge's.
    "weighted_vote": the answer with the largest sum of weights. "consensus": always the judge's. If no member gives an
    answer the first text stands (the heaviest). A member that fails is left out.
    """

    def __init__(
        self, name: str, agents: Sequence[WorkflowNode], strategy: str = "majority_vote",
        consensus_agent: WorkflowNode | None = None, weights: Sequence[float] | None = None, **config: Any,
    ):  # fmt: skip
        super().__init__(name, **config)
        self.agents, self.strategy, self.consensus_agent = list(agents), strategy, consensus_agent
        self.weights = [1.0] * len(self.agents) if weights is None else list(weights)
        if not self.agents:
            raise ValueError(f"ensemble {name!r} has no agents")
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy {strategy!r} of ensemble {name!r} is not one of {', '.join(STRATEGIES)}")
        if strategy == "consensus" and consensus_agent is None:
            raise ValueError(f"ensemble {name!r}: strategy 'consensus' needs a consensus_agent")
        if len(self.weights) != len(self.agents):
            raise ValueError(f"ensemble {name!r} has {len(self.agents)} agents but {len(self.weights)} weights")

    def process(self, context: Context) -> Message:
        open_branch, n = _open_branches(), len(self.agents)
        works = [lambda member=member: _ask(member, context) for member in self.agents]
        results = _at_once([open_branch(i) for i in range(n)], works)
        kept = [(text, w) for text, w in zip(results, self.weights, strict=True) if isinstance(text, str)]
        if not kept:
            raise next(problem for problem in results if isinstance(problem, Exception))
        texts = [text for text, _ in kept]
        classes = PLAY.language.classes(texts)
        judge, weighted = self.consensus_agent, self.strategy == "weighted_vote"
        differ = self.strategy == "consensus" or len({c for c in classes if c >= 0}) > 1
        if judge is not None and differ and not weighted:
            text = _within(open_branch(n), lambda: _judge(judge, context, texts))
        else:
            text = _elect(texts, classes, [w if weighted else 1.0 for _, w in kept])
        return Message(text, metadata={"strategy": self.strategy, "num_agents": n, "all_responses": texts})


def _judge(judge: WorkflowNode, context: Context, texts: Sequence[str]) -> str:
    """One text out of several, by a node that is shown all."""
    ask, language = view(context), PLAY.language
    shown = language.prompts.judge(ask, [language.brief(text) for text in texts])
    return _ask(judge, context, Ask(shown, (*ask.sources, *passed(map(path_of, texts), "judge"))))


def _elect(texts: Sequence[str], classes: Sequence[int], weights: Sequence[float]) -> str:
    """The first text of the heaviest class; the heaviest text if none has an answer. Ties go to who stands first."""
    if max(classes) < 0:
        classes = range(len(texts))
    sums = {c: sum(w for other, w in zip(classes, weights, strict=True) if other == c) for c in classes if c >= 0}
    winner = texts[classes.index(max(sums, key=lambda c: (sums[c], -c)))]
    votes = [[path_of(text), path_of(winner), "vote"] for text in texts if path_of(text)]
    PLAY.language.line.tell(do="links", links=votes)
    return winner


class ReflectionNode(WorkflowNode):
    """Solve, criticise, revise. Without a `critic_agent` the agent criticises itself.

    Ends after `num_iterations`, when the critic says CORRECT, or when a revision says nearly the same as before.
    """

    def __init__(
        self, name: str, agent: WorkflowNode, num_iterations: int = 2, reflection_prompt: str | None = None,
        critic_agent: WorkflowNode | None = None, refinement_prompt: str | None = None,
        include_history: bool = False, **config: Any,
    ):  # fmt: skip
        super().__init__(name, **config)
        self.agent, self.critic_agent, self.num_iterations = agent, critic_agent or agent, num_iterations
        self.reflection_prompt, self.refinement_prompt = reflection_prompt, refinement_prompt
        self.include_history = include_history

    def process(self, context: Context) -> Message:
        return _within(_open_branches()(0), lambda: self._reflect(context))

    def _reflect(self, context: Context) -> Message:
        ask, brief = view(context), PLAY.language.brief
        text = _ask(self.agent, context)
        history: list[dict[str, Any]] = [{"iteration": 0, "response": text, "reflection": None}]
        done = False
        while not done and len(history) <= self.num_iterations:
            critique = Ask(self._critique(ask, brief(text)), (*ask.sources, *passed([path_of(text)])))
            review = _ask(self.critic_agent, context, critique)
            done = _says_correct(review)
            if not done:
                reviewed = [(a["response"], b["reflection"]) for a, b in itertools.pairwise(history)]
                older = reviewed if self.include_history else []
                paths = [path_of(t) for pair in [*older, (text, review)] for t in pair]
                refine = Ask(self._refine(ask, brief(text), brief(review), older), (*ask.sources, *passed(paths)))
                revised = _ask(self.agent, context, refine)
                done = _similarity(text, revised) > SIMILAR
                text = revised if not done or PLAY.language.classes([revised]) == [0] else text
            history.append({"iteration": len(history), "response": text, "reflection": review})
        return Message(text, metadata={"num_iterations": self.num_iterations, "history": history})

    def _critique(self, ask: str, text: str) -> str:
        if self.reflection_prompt:
            return _fill(self.reflection_prompt, question=ask, response=text)
        return PLAY.language.prompts.critic(ask, text, own=self.critic_agent is self.agent)

    def _refine(self, ask: str, text: str, review: str, older: Sequence[tuple[str, str]]) -> str:
        prompts, brief = PLAY.language.prompts, PLAY.language.brief
        ask += "".join(prompts.earlier + brief(t) + prompts.review + brief(r) for t, r in older)
        if self.refinement_prompt:
            return _fill(self.refinement_prompt, question=ask, response=text, reflection=review)
        return prompts.revise(ask, text, review)


def _fill(template: str, **values: str) -> str:
    """`template.format(**values)`, but braces of LaTeX are no slots, and nothing reaches into a value."""
    doubled = "{{" in template

    def put(slot: re.Match[str]) -> str:
        return values.get(slot[1], "") if slot[1] else slot[0][0] if doubled else slot[0]

    return SLOT.sub(put, template)


def _says_correct(review: str) -> bool:
    """By the last "VERDICT: ..." of a review, else by the end of its last line."""
    if verdicts := VERDICT.findall(review):
        return not verdicts[-1]
    return bool(ENDS_CORRECT.search(review.rstrip()))


def _similarity(a: str, b: str) -> float:
    """Trigrams that two texts have in common, as a share of all that they have."""
    x, y = ({t[i : i + 3] for i in range(len(t) - 2)} for t in (a, b))
    return len(x & y) / len(x | y) if x and y else 0.0


class DebateNode(WorkflowNode):
    """Debaters answer, then answer again knowing all earlier answers of the others; the judge has the last word."""

    def __init__(
        self, name: str, debaters: Sequence[WorkflowNode], judge: WorkflowNode | None = None, num_rounds: int = 2,
        **config: Any,
    ):  # fmt: skip
        super().__init__(name, **config)
        self.debaters, self.num_rounds = list(debaters), num_rounds
        if not self.debaters:
            raise ValueError(f"debate {name!r} has no debaters")
        self.judge = judge or self.debaters[0]

    def process(self, context: Context) -> Message:
        open_branch, n = _open_branches(), len(self.debaters)
        branches = [open_branch(i) for i in range(n)]
        asks: list[Ask | None] = [None] * n
        rounds: list[list[str]] = []
        for _ in range(max(1, self.num_rounds)):
            works = [lambda i=i, ask=ask: _ask(self.debaters[i], context, ask) for i, ask in enumerate(asks)]
            results = _at_once(branches, works)
            rounds.append([text for text in results if isinstance(text, str)])
            if len(rounds[-1]) < n:
                raise next(problem for problem in results if isinstance(problem, Exception))
            asks = [_next_round(context, rounds, i) for i in range(n)]
        text = _within(open_branch(n), lambda: _judge(self.judge, context, rounds[-1]))
        return Message(text, metadata={"num_rounds": len(rounds), "num_debaters": n, "debate_history": rounds})


def _next_round(context: Context, rounds: Sequence[Sequence[str]], i: int) -> Ask:
    """What debater i is asked after some rounds."""
    ask, language = view(context), PLAY.language
    own, others = rounds[-1][i], [text for texts in rounds for j, text in enumerate(texts) if j != i]
    shown = language.prompts.debate(ask, language.brief(own), [language.brief(text) for text in others])
    return Ask(shown, (*ask.sources, *passed(map(path_of, [own, *others]))))


class RouterNode(WorkflowNode):
    """The node that `routing_func(context)` names; the default one if that fails or names none."""

    def __init__(
        self, name: str, routes: dict[str, WorkflowNode], routing_func: Callable[[Context], str],
        default_route: str = "default", **config: Any,
    ):  # fmt: skip
        super().__init__(name, **config)
        self.routes, self.routing_func, self.default_route = dict(routes), routing_func, default_route
        if default_route not in self.routes:
            raise ValueError(f"router {name!r} has no route {default_route!r} to go by default; give default_route")

    def process(self, context: Context) -> Message:
        try:
            route = self.routing_func(context)
        except Exception:
            route = self.default_route
        route = route if route in self.routes else self.default_route
        result = self.routes[route](context.copy())
        result.metadata |= {"routed_from": self.name, "route_taken": route}
        return result


def create_keyword_router(
    name: str, keyword_routes: dict[str, WorkflowNode], default_node: WorkflowNode, case_sensitive: bool = False
) -> RouterNode:
    """A router to the node of the first keyword that stands in the latest message."""

    def route(context: Context) -> str:
        text = str(context.get_latest_message())
        return next(k for k in keyword_routes if (k in text if case_sensitive else k.lower() in text.lower()))

    return RouterNode(name, {**keyword_routes, "default": default_node}, route)
