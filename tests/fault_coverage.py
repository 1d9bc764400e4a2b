"""Which known faults have a test: the ids of the fault lists against the `@pytest.mark.fault("F041")` marks.

  python tests/fault_coverage.py [FOLDER with faults.md and bugs.md]

Exit code 1 if an id has neither a test nor a place in `NOT_DUE`, or stands in `NOT_DUE` although it has one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parent
LISTS = TESTS.parents[1] / "shared"

# Faults of parts that do not exist yet, by part: (why, ids). Everything else must have a test.
NOT_DUE: dict[str, tuple[str, str]] = {}


def listed(folder: Path) -> dict[str, str]:
    """Id -> short description of every row of the fault lists in `folder`.

    Raises:
      FileNotFoundError: a list is missing.
    """
    out = {}
    for name in ("faults.md", "bugs.md"):
        for line in (folder / name).read_text().splitlines():
            if row := re.match(r"\| ([FB]\d{3}) \| ([^|]+) \| ([^|]+) \|", line):
                out[row[1]] = f"{row[2].strip()}: {row[3].strip()}" if row[1][0] == "F" else row[2].strip()
    return out


def marked(source: str) -> list[str]:
    """Ids of all `pytest.mark.fault(...)` calls in a test file."""
    return [
        argument.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fault"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def covered(folder: Path = TESTS) -> dict[str, list[str]]:
    """Id -> the test files that cover it."""
    out: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for fault in marked(path.read_text()):
            out.setdefault(fault, []).append(path.relative_to(folder).as_posix())
    return out


def problems(
    known: Mapping[str, str], tests: Mapping[str, object], not_due: Mapping[str, tuple[str, str]]
) -> list[str]:
    """One line for every id that is silently missing, excused for nothing, excused twice, or unknown."""
    excused = [fault for _, ids in not_due.values() for fault in ids.split()]
    out = [
        f"{f} has no test and no reason in NOT_DUE ({known[f]})" for f in known if f not in tests and f not in excused
    ]
    out += [f"{f} has a test ({tests[f]}): take it off NOT_DUE" for f in excused if f in tests]
    out += [f"{f} stands in NOT_DUE twice" for f in sorted(set(excused)) if excused.count(f) > 1]
    out += [f"{f} is not in the fault lists" for f in [*tests, *excused] if f not in known]
    return out


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else LISTS
    if not (folder / "faults.md").exists():
        print(f"no fault lists in {folder}: nothing to compare with")
        return 0
    known, tests = listed(folder), covered()
    print(f"{len(known.keys() & tests.keys())} of {len(known)} known faults have a test")
    for part, (why, ids) in NOT_DUE.items():
        print(f"  not due: {part} ({why}): {ids}")
    found = problems(known, tests, NOT_DUE)
    print(*found, sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
