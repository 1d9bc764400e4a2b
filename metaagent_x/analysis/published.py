"""What the paper *MetaAgent-X* (arXiv 2605.14212) reports: facts to stand beside ours, and always marked as published.

Accuracies are percent of tasks answered entirely right; benchmarks have the names of `tasks.datasets`, methods those of
`LABELS`. Nothing here was measured by this project. AIME is a mean of 3 runs, the others of one; how many tasks of each
benchmark were played is not stated, and budgets of methods were not matched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

MATH = ("aime24", "aime25", "olympiadbench")
CODE = ("livecodebench", "apps", "code_contests")
BENCHMARKS = (*CODE, *MATH)  # in the order of the paper's main table
AVERAGE = "average"

LABELS: Mapping[str, str] = {
    "single": "single agent", "single_grpo": "single agent + GRPO", "aflow": "AFlow", "adas": "ADAS",
    "scoreflow": "ScoreFlow", "maas": "MaAS", "afm_coder_7b": "AFM-Coder-7B", "metaagent_x_sft": "MetaAgent-X SFT",
    "metaagent_x": "MetaAgent-X RL",
}  # fmt: skip


def _row(*cells: float) -> Mapping[str, float]:
    return dict(zip((*BENCHMARKS, AVERAGE), cells, strict=True))


# Size of the Qwen3 model -> method -> benchmark, or "average" as printed -> accuracy in percent.
MAIN: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "8B": {
        "single": _row(22.80, 30.20, 15.75, 18.30, 20.90, 55.00, 27.16),
        "single_grpo": _row(25.70, 37.00, 12.12, 18.30, 26.67, 54.80, 29.10),
        "aflow": _row(28.60, 27.40, 15.80, 16.67, 20.83, 35.31, 24.10),
        "adas": _row(20.00, 27.00, 12.20, 13.30, 16.70, 32.90, 20.35),
        "scoreflow": _row(25.90, 26.50, 13.30, 28.90, 20.00, 51.30, 27.65),
        "maas": _row(24.29, 30.00, 15.15, 45.80, 29.20, 48.90, 32.22),
        "afm_coder_7b": _row(29.10, 28.00, 21.20, 12.00, 8.00, 21.80, 20.35),
        "metaagent_x_sft": _row(36.00, 32.00, 13.00, 33.00, 20.00, 59.00, 32.17),
        "metaagent_x": _row(41.00, 38.00, 17.00, 40.00, 33.33, 61.00, 38.33),
    },
    "4B": {
        "single": _row(13.80, 27.40, 14.80, 20.00, 19.10, 33.20, 21.38),
        "single_grpo": _row(16.70, 35.60, 18.60, 29.10, 26.67, 47.10, 28.96),
        "scoreflow": {AVERAGE: 26.65},  # the only cell that is known
        "metaagent_x": _row(36.00, 36.70, 14.20, 33.33, 26.67, 58.20, 34.18),
    },
}

# (size, method, cell) -> what is wrong with it. Every other average is the mean of its six cells to 0.01.
MISPRINTS: Mapping[tuple[str, str, str], str] = {
    ("8B", "afm_coder_7b", AVERAGE): "the six cells average 20.02; 20.35 is the average of ADAS",
    ("8B", "metaagent_x", AVERAGE): "the six cells average 38.39",
}


@dataclasses.dataclass(frozen=True)
class Ablation:
    """One row of an ablation, Qwen3-8B.

    Attributes:
      table: which comparison it belongs to. label: the row's name.
      settings: what the row sets, by field of the config.
      cells: benchmark, or "math" and "code" (means of `MATH` and of `CODE`) -> accuracy in percent; empty where the
        paper gives none. remark: what it says instead or besides.
    """

    table: str
    label: str
    settings: Mapping[str, Any]
    cells: Mapping[str, float]
    remark: str = ""


ABLATIONS: tuple[Ablation, ...] = (
    Ablation("rollout", "M x N = 4 x 4", {"designs": 4, "executions": 4}, {"aime24": 40.0, "aime25": 33.3}),
    Ablation("rollout", "M x N = 8 x 1", {"designs": 8, "executions": 1}, {"aime24": 33.3, "aime25": 30.0}),
    Ablation("policy", "shared", {"policy": "shared"}, {"aime24": 40.0, "aime25": 33.3}),
    Ablation("policy", "separate", {"policy": "separate"}, {"aime24": 33.3, "aime25": 26.7}),
    Ablation("schedule", "stagewise", {"schedule": "stagewise"}, {"math": 44.8, "code": 32.0}, "rises in steps"),
    Ablation("schedule", "coupled", {"schedule": "coupled"}, {"math": 36.7, "code": 25.2},
             "rises, then collapses into repeated tokens"),
    Ablation("schedule", "designer only", {"schedule": "designer_only"}, {"math": 38.6, "code": 27.5}),
    Ablation("schedule", "executor only", {"schedule": "executor_only"}, {"math": 39.6, "code": 30.7},
             "fast, then a plateau"),
    Ablation("stage length", "K = 1", {"stage_length": 1}, {}, "collapses after about 150 steps"),
    Ablation("stage length", "K = 10", {"stage_length": 10}, {}, "stable"),
    Ablation("stage length", "K = 30", {"stage_length": 30}, {}, "stable, best final reward"),
)  # fmt: skip

# Table 6: structures of the 8B model after RL -> percent of the executions. Other structures are not listed there.
STRUCTURES: Mapping[str, Mapping[str, float]] = {
    "aime24": {"single": 18.9, "reflection": 70.0, "ensemble": 11.1},
    "aime25": {"single": 15.6, "reflection": 73.3, "ensemble": 11.1},
    "olympiadbench": {"single": 46.4, "reflection": 44.8, "ensemble": 8.8},
    "code_contests": {"single": 26.7, "reflection": 62.4, "ensemble": 10.9},
    "livecodebench": {"single": 43.5, "reflection": 52.6, "ensemble": 3.8},
    "apps": {"single": 55.2, "reflection": 43.8, "ensemble": 1.0},
}

# AIME 2025: of the tasks that RL newly solved, those with the structure of before, and those after a change of it.
ATTRIBUTION: Mapping[str, float] = {"execution": 50.0, "design": 50.0}
ATTRIBUTION_REMARK = "one account of the paper gives 55 and 45"


def printed(size: str, method: str, cell: str) -> str:
    """A cell of the main table for a table: "38.33*" where it is a known misprint, "-" where it is not given."""
    value = MAIN.get(size, {}).get(method, {}).get(cell)
    if value is None:
        return "-"
    return f"{value:.2f}{'*' if (size, method, cell) in MISPRINTS else ''}"
