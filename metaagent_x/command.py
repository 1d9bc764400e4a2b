"""What the commands of the long jobs have in common: what they say, which flags set a field, and how they end."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import flags, logging
from rich.console import Console

from metaagent_x.config import ConfigError, Settings
from metaagent_x.interruption import Interruption
from metaagent_x.learner.checkpoint import CheckpointError
from metaagent_x.rollout.engine import EngineFailure

console = Console()
say = functools.partial(console.print, highlight=False, markup=False, soft_wrap=True)  # text as it is


def override(
    c: Settings, given: Mapping[str, flags.FlagHolder], read: Mapping[str, Callable[[str], Any]] | None = None
) -> None:
    """Sets the fields of the flags that were given.

    Args:
      given: field -> its flag, whose value is None unless it was given.
      read: field -> how the text of its flag becomes a value, where that is not plain.
    """
    for field, flag in given.items():
        if flag.value is not None:
            parse = (read or {}).get(field, lambda value: value)
            c.update_from_flattened_dict({field: parse(flag.value)})


@contextlib.contextmanager
def ending(
    c: Settings, *bad_input: type[Exception], goes_on: str = "", player: str = "engine"
) -> Iterator[Interruption]:
    """Around all that a job does: yields its signals, and ends the process with one line and an exit code for

    - 2: `ConfigError`, or one of `bad_input`
    - 1: an engine that is away, a checkpoint that cannot be used, a file that cannot be read or written
    - 3: an interruption

    Anything else is a defect and keeps its traceback.

    Args:
      c: the settings; their `workdir` is named as it is by then.
      goes_on: where the same command goes on: "from the last checkpoint". Empty: it begins again.
      player: what the job calls who answers, for the line about one that is away.
    """
    logging.set_verbosity(logging.WARNING)  # Orbax tells every file that it reads or writes
    interruption = Interruption(console.print)
    interruption.install()

    def also() -> str:
        return f"; the same command goes on {goes_on} in {c.workdir}" if goes_on else ""

    try:
        yield interruption
    except (ConfigError, *bad_input) as error:
        say("bad input:", str(error))
        sys.exit(2)
    except EngineFailure as error:
        say(f"{player}: {error}{also()}")
        sys.exit(1)
    except CheckpointError as error:
        say("checkpoint:", str(error))
        sys.exit(1)
    except OSError as error:
        say(f"{c.workdir or 'files'}: {error}; what was written before is whole")
        sys.exit(1)
    except KeyboardInterrupt:
        say(f"interrupted{also()}")
        sys.exit(3)
