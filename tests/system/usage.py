"""What processes hold at a moment, and whether it grows: for the soak tests."""

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that `pid` has started, and theirs."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    found, new = [], [pid]
    while new:
        new = [child for one in new for child in parents.get(one, [])]
        found += new
    return found


def resident(pid: int) -> float:
    """MB of memory that a process has taken or maps of shared memory, removed files included; not of files on disks."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))) / 1e3


def tell(samples: list[dict[str, float]], grown: dict[str, float], limits: dict[str, float]) -> None:
    """Prints what has grown, and the floor of each eighth of the samples."""
    n, cut = len(samples), min(8, len(samples))
    for what, by in grown.items():
        parts = [min(s[what] for s in samples[n * i // cut : n * (i + 1) // cut]) for i in range(cut)]
        print(f"{what}: grown {by:.1f} of {limits[what]:g};", *(f"{part:.1f}" for part in parts))


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    """By how much the least of the last quarter exceeds the least of the second quarter."""
    n = len(samples)
    early, late = samples[n // 4 : n // 2], samples[n - n // 4 :]
    return {k: min(s[k] for s in late) - min(s[k] for s in early) for k in samples[0]}
