"""Figures and tables from run folders and evaluations, on one page.

  python -m metaagent_x.analyze runs/tiny --out analysis/tiny
  python -m metaagent_x.analyze runs/seed0 runs/seed1 runs/seed2 runs/m8n1 --out analysis/rollout
  python -m metaagent_x.analyze evaluations/cold evaluations/rl --out analysis/gain

Reads files only, finished runs and running ones. Runs of equal settings but for the seed are taken together; the first
variant is the one that others are compared with. Of two evaluations the first is the one before. DIR gets index.html,
figures/ (SVG and PNG) and tables/ (Markdown and CSV).

Exit codes: 0 done, 2 bad input, 3 interrupted (the same command starts again), 1 anything else.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from metaagent_x.analysis.material import gather
from metaagent_x.analysis.study import write_study
from metaagent_x.run_folder import RunFolderError

console = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one analysis. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m metaagent_x.analyze", description="Figures and tables from run folders and evaluations."
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="folder of a run, or of an evaluation")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; may hold an earlier analysis")
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.perf_counter()
    try:
        with Progress(console=console, transient=True) as progress:

            def files(name: str, paths: Sequence[Path]) -> Iterator[Path]:
                return iter(progress.track(paths, description=f"traces of {name}"))

            material = gather(parsed.folders, progress=files)
            task = progress.add_task("sections", total=None)
            page = write_study(
                material, parsed.out, step=lambda name: progress.update(task, description=f"section: {name}")
            )
    except RunFolderError as error:
        print(f"bad input: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot read the folders or write {parsed.out}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command starts again", file=sys.stderr)
        return 3
    count = {ending: len(list(parsed.out.glob(f"*/*.{ending}"))) for ending in ("svg", "csv")}
    print(f"{page}: {count['svg']} figures, {count['csv']} tables ({time.perf_counter() - began:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
