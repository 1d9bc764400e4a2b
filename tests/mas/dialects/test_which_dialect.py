"""Which dialect a script is written in, told by its imports."""

import pytest

from metaagent_x.mas import Script


@pytest.mark.parametrize("source,dialect", [
    ("from workflow import AgentNode, Workflow", "workflow"),
    ("from workflow.nodes import DebateNode", "workflow"),
    ("import workflow", "workflow"),
    ("import workflow.nodes as n", "workflow"),
    ("from workflow import *", "workflow"),
    ("from utils.environments.math_env import MathEnvironment", "workflow"),
    ("def build():\n    from workflow import Workflow\n    return Workflow()", "workflow"),
    ("from workflow import solver, judge\nanswer = solver()(task)", ""),
    ("from metaagent_x.mas import solver\nanswer = solver()(task)", ""),
    ("from mas import AgentNode", ""),
    ("import workflows\nfrom utils import environments2", ""),
    ("from .workflow import AgentNode", ""),
    ("answer = solver()(task)  # from workflow import AgentNode", ""),
    ("from workflow import AgentNode\nx = (", ""),
    ("", ""),
])  # fmt: skip
def test_a_script_is_in_the_dialect_if_it_imports_names_of_the_package_that_are_not_ours(source, dialect):
    assert Script.of(source).dialect == dialect
