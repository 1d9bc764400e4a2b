"""Texts that say nearly the same: MinHash signatures find the candidates, the shingles themselves decide.

Two texts are near-duplicates if the Jaccard index of their sets of 5 words in a row reaches a limit (Broder 1997).
Candidates share one band of a signature of 128 hashes; at an index of 0.8 a pair is missed once in 10,000.
"""

from __future__ import annotations

import collections
import zlib

import numpy as np

from metaagent_x.tasks.datasets.overlap import normalise

SHINGLE = 5  # words
BANDS, ROWS = 32, 4
_PRIME = (1 << 31) - 1
_rng = np.random.default_rng(0)
_FACTORS = _rng.integers(1, _PRIME, BANDS * ROWS, dtype=np.int64)
_SHIFTS = _rng.integers(0, _PRIME, BANDS * ROWS, dtype=np.int64)


def shingles(text: str) -> frozenset[int]:
    """Hashes of every 5 words in a row; of the whole text if it is shorter."""
    words = normalise(text).split()
    grams = [" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))]
    return frozenset(zlib.crc32(gram.encode("utf-8", "replace")) % _PRIME for gram in grams)


def signature(grams: frozenset[int]) -> np.ndarray:
    """[BANDS * ROWS] smallest hashes. Equal positions are as frequent as the Jaccard index is large."""
    values = np.fromiter(grams, np.int64, len(grams))
    return ((values[:, None] * _FACTORS + _SHIFTS) % _PRIME).min(axis=0)


class Seen:
    """Texts kept so far.

    Args:
      limit: Jaccard index from which on a text counts as seen; 1.0: only if it is the same but for layout.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._whole: set[str] = set()
        self._grams: list[frozenset[int]] = []
        self._bands: dict[tuple[int, bytes], list[int]] = collections.defaultdict(list)

    def has(self, text: str) -> bool:
        """Whether a text that was added says nearly the same."""
        if normalise(text) in self._whole:
            return True
        if self.limit >= 1.0:
            return False
        grams = shingles(text)
        near = {i for key in _keys(grams) for i in self._bands.get(key, ())}
        return any(len(grams & g) >= self.limit * len(grams | g) for g in map(self._grams.__getitem__, near))

    def add(self, text: str) -> None:
        self._whole.add(normalise(text))
        if self.limit < 1.0:
            grams = shingles(text)
            for key in _keys(grams):
                self._bands[key].append(len(self._grams))
            self._grams.append(grams)


def _keys(grams: frozenset[int]) -> list[tuple[int, bytes]]:
    rows = signature(grams).reshape(BANDS, ROWS)
    return [(band, row.tobytes()) for band, row in enumerate(rows)]
