"""Shows a run: from the curve to a step, a task, a design, an execution, a call and its tokens.

  python -m metaagent_x.view runs/tiny                                     # serves http://127.0.0.1:8384/
  python -m metaagent_x.view runs/tiny --export tiny.html --steps 1,32,64  # one file that opens without a server

Works on any folder with traces/*.parquet, also while a run writes it; nothing in it is changed. The page is served to
this machine alone and loads nothing from elsewhere; to see it from another machine, forward the port, as in
ssh -L 8384:localhost:8384 HOST.

Exit codes: 0 done (also when Ctrl-C ends the server), 2 bad input, 3 an export was interrupted, 1 anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from metaagent_x.viewer import pages
from metaagent_x.viewer.answers import Answers
from metaagent_x.viewer.server import Server
from metaagent_x.viewer.store import Damaged, NotThere, Store

PORT = 8384
FIGURES = ("figure/learning", "figure/structures")


class ViewError(ValueError):
    """What cannot be shown or exported as asked. Exit code 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves a run, or exports it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m metaagent_x.view", description="Shows the traces of a run.")
    parser.add_argument("run", type=Path, help="folder of the run, or any folder with traces/")
    parser.add_argument("--port", type=int, default=PORT, help=f"of the local page; 0 takes a free one ({PORT})")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json, if the run's is not to be used")
    parser.add_argument("--export", type=Path, metavar="FILE.html", help="write one file instead of serving")
    parser.add_argument("--steps", help="of the export, as in 1,32,60-64; the last one by default")
    parser.add_argument("--max_mb", type=float, default=50.0, help="size of the export at most (50)")
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=True)
    try:
        if parsed.steps and not parsed.export:
            raise ViewError(
                f"--steps={parsed.steps} chooses what --export=FILE.html writes; the server shows every step"
            )
        if parsed.tokenizer and not (parsed.tokenizer / "tokenizer.json").is_file():
            raise ViewError(f"--tokenizer={parsed.tokenizer}: there is no tokenizer.json in it")
        answers = Answers(Store(parsed.run), parsed.tokenizer)
        if parsed.export:
            console.print(export(answers, parsed.export, parsed.steps, parsed.max_mb, console), markup=False)
        else:
            serve(answers, parsed.port, console)
        return 0
    except (ViewError, NotThere, Damaged) as error:
        print(f"bad input: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot write {parsed.export}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not parsed.export:
            return 0
        print("interrupted; the same command starts again", file=sys.stderr)
        return 3


def serve(answers: Answers, port: int, console: Console) -> None:
    """Serves until it is interrupted.

    Raises:
      ViewError: the port is in use or not allowed.
    """
    try:
        server = Server(answers, port)
    except (OSError, OverflowError) as error:
        raise ViewError(f"--port={port}: {error}; choose another, or 0 for a free one") from error
    console.print(f"{answers.store.folder} at {server.url}   (Ctrl-C ends)", markup=False)
    threading.Thread(target=_warm, args=(answers,), daemon=True).start()
    with server:
        server.serve_forever()


def export(answers: Answers, file: Path, steps: str | None, max_mb: float, console: Console) -> str:
    """Writes one file. Returns a line that says what it is.

    Args:
      steps: as in `chosen`. max_mb: the file's size at most, in 10^6 bytes. console: for the progress.

    Raises:
      ViewError: no such step, or a file that would be too large. Damaged: a trace cannot be read.
      OSError: the file cannot be written.
    """
    numbers = chosen(steps, answers.store.steps())
    if not file.absolute().parent.is_dir():
        raise ViewError(f"--export={file}: there is no folder {file.parent}")
    found = {address: answers.get(address) for address in ("run", *FIGURES)}
    found["run"] |= {"steps": numbers, "exported": True}
    addresses = [address for step in numbers for address in answers.addresses(step)]
    packer, packed = (
        zlib.compressobj(1),
        0,
    )  # about what the file will hold, so that far too much is not read to its end
    for address in track(addresses, "reading", console=console, transient=True, disable=not console.is_terminal):
        found[address] = answers.get(address)
        packed += len(packer.compress(json.dumps(found[address]).encode()))
        if packed * 4 / 3 > 2 * max_mb * 1e6:
            raise _too_large(numbers, f"over {packed * 4 / 3e6:.1f}", max_mb)
    for address in [a for a in addresses if a.count("/") == 1]:
        same = answers.get(f"same/{address}")
        found[f"same/{address}"] = same | {"steps": [s for s in same["steps"] if s["step"] in numbers]}
    for step in numbers:
        found[str(step)]["steps"] = numbers
    page = pages.single(found, f"{answers.store.name}: traces").encode()
    if len(page) > max_mb * 1e6:
        raise _too_large(numbers, f"{len(page) / 1e6:.1f}", max_mb)
    draft = file.with_name(f".{file.name}.draft")
    try:
        draft.write_bytes(page)
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)
    return f"{file}: {len(numbers)} steps, {len(addresses)} pages, {len(page) / 1e6:.1f} MB"


def _too_large(steps: Sequence[int], size: str, max_mb: float) -> ViewError:
    return ViewError(
        f"{len(steps)} steps make a file of {size} MB, more than --max_mb={max_mb:g}; name fewer --steps or allow more"
    )


def chosen(text: str | None, known: Sequence[int]) -> list[int]:
    """The steps that "1,32,60-64" names, in order; the last known one for None.

    Raises:
      ViewError: not of this form, or a single step without a trace; of a range, those that there are will do.
    """
    if not known:
        raise ViewError("the folder has no trace yet: there is nothing in traces/step_*.parquet")
    if text is None:
        return [known[-1]]
    steps = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or not (last.isdigit() if dash else not last):
            raise ViewError(f"--steps={text}: {part!r} is neither a step nor a range; write them as in 1,32,60-64")
        found = [step for step in known if int(first) <= step <= int(last or first)]
        if not found:
            raise ViewError(f"--steps={text}: no trace of {part.strip()}; there are {known[0]} to {known[-1]}")
        steps.update(found)
    return sorted(steps)


def _warm(answers: Answers) -> None:
    """Loads what the first click would wait for: matplotlib, the tokenizer, lint."""
    for name in FIGURES:
        answers.get(name)
    answers.pieces.of([0])
    from metaagent_x.viewer import scripts

    scripts.lint("answer = solver()(task)")


if __name__ == "__main__":
    sys.exit(main())
