"""Token ids as the texts that they stand for, one by one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer


class Pieces:
    """Reads ids with the tokenizer of a run. Without one, an id stands for itself: ⟨17⟩."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """
        Args:
          folders: where `tokenizer.json` may lie; the first that has one is taken, when it is first needed. One that
            cannot be read, as while it is written, is none.
        """
        self._folders = folders

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer | None:
        for folder in self._folders:
            if (folder / "tokenizer.json").is_file():
                with contextlib.suppress(Exception):  # the library raises nothing more exact
                    return Tokenizer.from_file(str(folder / "tokenizer.json"))
        return None

    @functools.cached_property
    def _added(self) -> dict[int, str]:
        known = self._tokenizer.get_added_tokens_decoder() if self._tokenizer else {}
        return {number: token.content for number, token in known.items()}

    def of(self, ids: Sequence[int]) -> list[str]:
        """The text of every id. Bytes that are no whole character stand as in `\\xe2`."""
        return [self._piece(i) for i in ids]

    def _piece(self, number: int) -> str:
        if number in self._added:
            return self._added[number]
        token = self._tokenizer.id_to_token(number) if self._tokenizer and number >= 0 else None
        if token is None:
            return f"⟨{number}⟩"
        if not all(character in _BYTES for character in token):  # not a byte-level vocabulary
            return token
        return bytes(_BYTES[character] for character in token).decode("utf-8", "backslashreplace")


def _byte_alphabet() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others for characters from 256 up."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(256)}


_BYTES = _byte_alphabet()
