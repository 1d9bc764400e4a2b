"""Which part may know which: the arrows of the layout, read off the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "metaagent_x"
FILES = sorted(ROOT.rglob("*.py"))

# part -> what of the project it may import. A dotted name allows one module, a plain one the whole part.
ARROWS = {
    "sandbox": {"sandbox"},
    "model": {"model"},
    "tasks": {"tasks", "sandbox"},
    "mas": {"mas", "sandbox", "tasks"},
    "rollout": {"rollout", "mas", "tasks"},
    "learner": {"learner", "model", "rollout.tree"},
    "analysis": {"analysis", "run_folder", "rollout.traces", "mas.classify"},
    "distillation": {"distillation", "mas", "rollout", "tasks", "analysis.html", "analysis.style"},
    "baselines": {"baselines", "mas", "tasks", "rollout"},
    "evaluation": {"evaluation", "baselines", "analysis", "mas", "tasks", "rollout", "run_folder", "interruption"},
    "live": {"config", "mas", "tasks", "rollout"},
    "viewer": {"viewer", "analysis", "run_folder", "rollout", "mas"},
    "run_folder": {"config"},
    "watchdog": {"config"},
    "guards": set(),
    "config": {"job_settings", "setting"},
    "job_settings": {"setting"},
    "setting": set(),
}
# The one place where rollouts meet the network.
EXCEPTIONS = {"rollout/jax_engine.py": {"model"}}
PURE = (
    "learner/advantages.py",
    "learner/objective.py",
    "learner/schedule.py",
    "learner/packing.py",
    "rollout/seeds.py",
)
PURE_MAY_IMPORT = {
    "__future__", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq", "itertools", "jax",
    "math", "numpy", "struct", "typing", "metaagent_x",
}  # fmt: skip


def imports(source):
    """[(module, line)] of every import statement, wherever it stands; `from a import b` gives "a.b"."""
    out = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            out += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides where the arrow points"
            out += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return out


def wrong_arrows(part, file, source):
    """Imports that the layout does not allow, as "line N: module"."""
    allowed = ARROWS[part] | EXCEPTIONS.get(file, set())
    known = [name.removeprefix("metaagent_x.") for name, _ in imports(source) if name.startswith("metaagent_x.")]
    return [name for name in known if not any(name == a or name.startswith(f"{a}.") for a in allowed)]


def part_of(path):
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", [p for p in FILES if part_of(p) in ARROWS], ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_point_one_way(path):
    assert wrong_arrows(part_of(path), path.relative_to(ROOT).as_posix(), path.read_text()) == []


def test_every_folder_has_its_place():
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and list(p.glob("*.py"))}
    assert folders <= ARROWS.keys()


@pytest.mark.parametrize(
    ("part", "source", "wrong"),
    [
        ("tasks", "import metaagent_x.mas", ["mas"]),
        ("mas", "def f():\n  from metaagent_x import rollout", ["rollout"]),
        ("learner", "from metaagent_x.rollout.tree import Trajectory", []),
        ("learner", "from metaagent_x.rollout import collect", ["rollout.collect"]),
        ("model", "import jax\nfrom metaagent_x.model import qwen3", []),
        ("rollout", "from metaagent_x.model.qwen3 import forward", ["model.qwen3.forward"]),
    ],
)  # fmt: skip
def test_a_wrong_arrow_is_seen(part, source, wrong):
    assert wrong_arrows(part, f"{part}/x.py", source) == wrong


@pytest.mark.parametrize("file", PURE)
def test_pure_files_have_no_config_clock_or_files(file):
    source = (ROOT / file).read_text()
    assert {name.split(".")[0] for name, _ in imports(source)} <= PURE_MAY_IMPORT
    tree = ast.parse(source)
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, (ast.Global, ast.Nonlocal))]
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert not called & {"open", "print", "input"}
    assert "metaagent_x.config" not in source and "ConfigDict" not in source


@pytest.mark.parametrize(
    "module",
    ["mas", "mas.child", "sandbox", "sandbox.zygote", "tasks", "tasks.math", "tasks.code", "rollout.tree",
     "rollout.engine", "rollout.seeds", "rollout.collect", "rollout.traces", "baselines.registry"],
)  # fmt: skip
def test_what_scripts_run_beside_never_loads_jax(module):
    """A process that is forked for every script must start small, and forking after JAX has started may hang."""
    program = (
        f"import sys, metaagent_x.{module}; print(sorted(m for m in ('jax', 'flax', 'tensorflow') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_tensorflow_and_torch_are_imported_nowhere():
    found = [
        (str(p), n) for p in FILES for n, _ in imports(p.read_text()) if n.split(".")[0] in ("tensorflow", "torch")
    ]
    assert found == []
