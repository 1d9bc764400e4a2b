"""The table of the methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metaagent_x.baselines import designed, majority, single
from metaagent_x.baselines.method import Means, Method, MethodError

Make = Callable[[Means, Mapping[str, str]], Method]
# name -> (what makes it, the options of NAME:option=value)
METHODS: Mapping[str, tuple[Make, tuple[str, ...]]] = {
    "metaagent_x": (designed.make, ()),
    "single": (single.make, ()),
    "single_majority": (majority.make, majority.OPTIONS),
}


def make(spec: str, means: Means) -> Method:
    """The method of "single" or "single_majority:members=8".

    Raises:
      MethodError: it does not exist, or does not take these options; the message lists what there is.
    """
    name, _, text = spec.partition(":")
    if name not in METHODS:
        raise MethodError(f"no method {name!r}; there are {', '.join(METHODS)}")
    maker, known = METHODS[name]
    options = {}
    for part in filter(None, text.split(",")):
        option, equals, value = part.partition("=")
        if not (equals and value) or option not in known or option in options:
            ways = ", ".join(f"{one}=..." for one in known) or "no options"
            raise MethodError(f"{spec!r}: {part!r} is not an option; {name} takes {ways}")
        options[option] = value
    return maker(means, options)
