"""What lint says of scripts of the dialect: they may import and do what they like, but their names must exist."""

import pytest

from metaagent_x.mas import Script, lint

GOOD = """
import os, sys, subprocess, tempfile
from workflow import *
from workflow import nodes, AgentNode, solver
from workflow.nodes import EnsembleNode as Team
import workflow.core
import utils.environments.math_env as m

class Own(workflow.core.WorkflowNode):
    def __init__(self):
        super().__init__("own")
        self._x = question.__class__

print(Team, nodes.DebateNode, m.MathEnvironment, ai_client, __file__, __name__, open, exec, kind, Own)
"""


@pytest.mark.parametrize("source,line,word,hint", [
    ("from workflow import AgentNod, Workflow", 1, "AgentNod", "nearest word: AgentNode"),
    ("import os\nfrom workflow.node import EnsembleNode", 2, "workflow.node", "nearest word: workflow.nodes"),
    ("import workflow.agents", 1, "workflow.agents", "unknown name"),
    ("from workflow import Workflow\nw = Workflow(name=nam)", 2, "nam", "unknown name nam"),
    ("from workflow import Workflow\ndef f():\n    return AgentNode('a')\n", 3, "AgentNode", "unknown name"),
    ("from workflow import Workflow\nworkflow = Workflow(\n    name=1 2)", 3, "name=1 2)", "syntax error"),
])  # fmt: skip
def test_unknown_names_and_bad_syntax_are_found_before_any_call(source, line, word, hint):
    problem = lint(Script.of(source))[0]
    assert (problem.line, problem.word) == (line, word) and hint in problem.hint


@pytest.mark.parametrize("source", [GOOD, GOOD.replace("from workflow import *\n", "")])
def test_imports_classes_and_attributes_are_allowed(source):
    assert Script.of(source).dialect == "workflow" and lint(Script.of(source)) == []
