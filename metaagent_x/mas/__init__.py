"""Multi-agent systems: the script language, how a script runs, and what it turned out to be."""

from metaagent_x.mas.classify import classify
from metaagent_x.mas.lint import Problem, lint, own_imports
from metaagent_x.mas.parse import parse_completion
from metaagent_x.mas.records import Budget, Call, CallRefused, CallRequest, Execution, ToolRun
from metaagent_x.mas.runner import run_script
from metaagent_x.mas.script import Script

__all__ = [
    "Budget", "Call", "CallRefused", "CallRequest", "Execution", "Problem", "Script", "ToolRun", "classify", "lint",
    "own_imports", "parse_completion", "run_script",
]  # fmt: skip
