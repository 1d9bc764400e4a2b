"""Makes the page of a run again, and shows other runs beside it.

  python -m metaagent_x.report runs/tiny
  python -m metaagent_x.report runs/tiny --beside runs/tiny_grpo

Reads files only, also while a run goes on. Exit codes: 0 done, 2 bad input, 3 interrupted (the same command starts
again), 1 anything else.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from metaagent_x.analysis.report import write_report
from metaagent_x.run_folder import RunFolderError


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes one page. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m metaagent_x.report", description="report.html of a run.")
    parser.add_argument("run", type=Path, help="folder of the run; the page is written into it")
    parser.add_argument(
        "--beside", type=Path, nargs="+", default=[], metavar="RUN",
        help="folders of runs whose held-out accuracy stands beside its own, over sampled tokens",
    )  # fmt: skip
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(write_report(parsed.run, parsed.beside))
        return 0
    except (RunFolderError, ValueError) as error:
        print(f"bad input: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot write {parsed.run}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command starts again", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
