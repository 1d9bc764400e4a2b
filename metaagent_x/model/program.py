"""What a compiled program computes and sends, read off its HLO text, every loop counted as often as it runs.

The compiler's own `cost_analysis` counts the body of a loop once: a scanned network would look one layer deep.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4,
         "f64": 8, "s64": 8, "u64": 8}  # fmt: skip
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")  # {{0,1},{2,3}}
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]")  # [2,4]<=[8]: two groups of four
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")  # mesh['a'=2,'b'=4] {'b'}
_ORIGIN = re.compile(r'op_name="([^"]*)"')


class ProgramError(ValueError):
    """The text holds something that this reader cannot count. The message quotes it."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """One matrix product or collective of one device.

    Attributes:
      kind: "dot", or one of `COLLECTIVES`.
      times: how often it runs; a half where a loop's length is known on average only.
      amount: of one run: FLOPs of a product, bytes of a collective's whole array (the larger of what goes in and out).
      group: devices that take part in a collective; 1 for a product.
      origin: where the traced code stands.
    """

    kind: str
    times: float
    amount: int
    group: int
    origin: str


def operations(text: str, *, outer_trips: float = 1.0) -> list[Operation]:
    """Every matrix product and collective of a compiled program.

    Loops carry their trip count where the compiler knows it. Two kinds do not: the loop over micro-batches, which lies
    in no other loop, and blockwise attention's walk over the key tiles left of the diagonal, which has i + 1 steps
    inside a loop over i.

    Args:
      text: `compiled.as_text()`.
      outer_trips: steps of a loop of unknown length that lies in no other loop.

    Raises:
      ProgramError: no entry computation, or a call of another library, whose work cannot be known.
    """
    bodies, entry = _computations(text)
    return list(_walk(bodies, entry, 1.0, None, outer_trips))


def _computations(text: str) -> tuple[dict[str, list[tuple[str, str, str, str]]], str]:
    """Computation -> its instructions as (name, type, opcode, rest of the line); and the entry's name."""
    bodies: dict[str, list[tuple[str, str, str, str]]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            lines = bodies[head[2]] = []
            entry = head[2] if head[1] else entry
        elif found := _INSTRUCTION.match(line):
            lines.append((found[1], found[2], found[3], found[4]))
    if not entry:
        raise ProgramError(f"no entry computation in a program of {len(text)} characters that begins {text[:60]!r}")
    return bodies, entry


def _walk(
    bodies: dict[str, list[tuple[str, str, str, str]]], name: str, times: float, inside: float | None, outer: float
) -> Iterator[Operation]:
    """`inside`: trips of the nearest loop around this computation."""
    types = {instruction: kind for instruction, kind, _, _ in bodies[name]}
    for _, result, opcode, rest in bodies[name]:
        kind = opcode.removesuffix("-start")
        origin = found[1] if (found := _ORIGIN.search(rest)) else ""
        if kind == "dot":
            yield Operation("dot", times, _dot_flops(result, types, rest), 1, origin)
        elif kind in COLLECTIVES:
            arrays = [bytes_of(t) for t in (result, *(types[n] for n in _operands(rest)))]
            yield Operation(kind, times, max(arrays), _group(rest), origin)
        elif kind == "custom-call" and "matmul" in rest:
            raise ProgramError(f"a matrix product by another library cannot be counted: {rest[:200]}")
        elif kind == "while":
            known = _TRIPS.search(rest)
            trips = float(known[1]) if known else outer if inside is None else (inside + 1) / 2
            for called in _CALLED.findall(rest):
                yield from _walk(bodies, called, times * trips, trips, outer)
        else:
            branches = _BRANCHES.search(rest)
            listed = [b.strip().lstrip("%") for b in branches[1].split(",")] if branches else []
            for called in [*_CALLED.findall(rest), *listed]:
                yield from _walk(bodies, called, times, inside, outer)


def _group(rest: str) -> int:
    """Devices of one group of a collective. Raises ProgramError."""
    if listed := _LISTED.search(rest):
        return len(listed[1].split(","))
    if counted := _COUNTED.search(rest):
        return int(counted[1])
    if named := _NAMED.search(rest):
        sizes = dict(part.split("=") for part in named[1].split(","))
        return math.prod(int(sizes[axis]) for axis in named[2].split(","))
    if "source_target_pairs=" in rest:  # a permutation: everyone sends to one other
        return 2
    raise ProgramError(f"cannot tell which devices take part in: {rest[:400]}")


def _operands(rest: str) -> list[str]:
    return re.findall(r"%([\w.\-]+)", rest.split(")", 1)[0])


def bytes_of(kind: str) -> int:
    """Bytes of an HLO type, the elements of a tuple together: "f32[2,3]{1,0}" -> 24. Raises ProgramError."""
    total = 0
    for dtype, dims in _ARRAY.findall(kind):
        if dtype not in SIZES:
            raise ProgramError(f"element type {dtype!r} of {kind!r} has no known size; add it to SIZES")
        total += SIZES[dtype] * math.prod(map(int, filter(None, dims.split(","))))
    return total


def _shape(kind: str) -> list[int]:
    found = _ARRAY.search(kind)
    return [int(n) for n in found[2].split(",") if n] if found else []


def _dot_flops(result: str, types: dict[str, str], rest: str) -> int:
    """Two per multiplied pair: every element of the result sums over the contracted sizes."""
    left, contracted = _shape(types[_operands(rest)[0]]), _CONTRACTED.search(rest)
    summed = math.prod(left[int(i)] for i in contracted[1].split(",") if i) if contracted else 1
    return 2 * math.prod(_shape(result)) * summed
