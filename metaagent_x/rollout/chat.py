"""Text to token ids and back, and Qwen3's chat template in no-thinking mode.

Content of tasks, roles, agents and tools is encoded with special tokens off, so that "<|im_end|>" in a text stays
ordinary text; only the template's own markers become special ids.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# Encoding is called for one text at a time; the library's thread pool would only make a later fork unsafe.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, START, END, THINK, END_THINK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"
MARKERS = (END_OF_TEXT, START, END, THINK, END_THINK)
GAP = "\n[...]\n"  # stands where `fit` took text out
# What `prompt` and `extend` build, for the fingerprint: a change of either must change it.
TEMPLATE = (
    "[<|im_start|>system\n{system}<|im_end|>\n]<|im_start|>user\n{user}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
# The same for other programs, which read it from the folder; a turn is written as it is, an answer's think block too.
JINJA = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{%- endif %}"
)


class Chat:
    """Tokenizer and chat template of one model.

    Args:
      folder: holds `tokenizer.json` (and the model's chat template, which goes into the fingerprint). "" gives a
        built-in tokenizer of 256 bytes and the markers, for tests and demos.

    Attributes:
      stop_ids: ids that end a completion: `<|im_end|>`, `<|endoftext|>`.
      pad_id: `<|endoftext|>`.
      vocab_size: number of real tokens; ids from here up mean nothing, even if the embedding has rows for them.

    Raises:
      ValueError: the file is missing, unreadable, or lacks a marker of the template.
    """

    def __init__(self, folder: str = ""):
        self.folder = folder
        self._spec, self._model_template = _read(folder) if folder else (_byte_tokenizer(), "")
        added = {t["content"]: t for t in self._spec["added_tokens"]}
        if missing := [m for m in MARKERS if m not in added]:
            raise ValueError(
                f"{folder}/tokenizer.json has no added token {missing[0]!r}; the Qwen3 chat template needs {MARKERS}"
            )
        # Without added tokens nothing in a text can turn into one of them.
        self._plain = Tokenizer.from_str(json.dumps({**self._spec, "added_tokens": []}))
        self._marker = {m: added[m]["id"] for m in MARKERS}
        hidden = {t["id"] for t in added.values() if t["special"]} | set(self._marker.values())
        self._added_text = {t["id"]: "" if t["id"] in hidden else t["content"] for t in added.values()}
        self.stop_ids = (self._marker[END], self._marker[END_OF_TEXT])
        self.pad_id = self._marker[END_OF_TEXT]
        self._model_size = self._plain.get_vocab_size(with_added_tokens=False)
        self.vocab_size = max(self._model_size, *(i + 1 for i in self._added_text))
        self._newline = self.encode("\n")
        self._header = [
            self._marker[START], *self.encode("assistant\n"), self._marker[THINK], *self.encode("\n\n"),
            self._marker[END_THINK], *self.encode("\n\n"),
        ]  # fmt: skip

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of vocabulary, special ids and template. Two sides with different ones must not work together."""
        spec = {k: v for k, v in self._spec.items() if k not in ("truncation", "padding")}
        parts = json.dumps([spec, TEMPLATE, self._model_template, self.stop_ids], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text. No text gives a special id; half of a surrogate pair becomes "?"."""
        return self._encoding(text).ids

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Numbers of ids of ordinary texts, counted in one batch."""
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        return [len(e.ids) for e in self._plain.encode_batch_fast(clean, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without the markers. Ids outside the vocabulary are nothing, not an error."""
        parts, run = [], []
        for i in ids:
            if i < self._model_size and i not in self._added_text:
                run.append(i)
            elif i in self._added_text:
                parts += [self._plain.decode(run, skip_special_tokens=False), self._added_text[i]]
                run = []
        return "".join([*parts, self._plain.decode(run, skip_special_tokens=False)])

    def prompt(self, system: str, user: str) -> list[int]:
        """Ids of a conversation's start, up to where the assistant writes. No system turn if `system` is ""."""
        turns = self._turn("system", system) if system else []
        return [*turns, *self._turn("user", user), *self._header]

    def turns(self, ids: Sequence[int]) -> list[tuple[str, str]]:
        """(role, content) of every turn of a prompt that `prompt`, `extend` or `fit` made: for engines that take text.

        The assistant's turn that the prompt opens at its end is left out.
        """
        out, at = [], 0
        ids = list(ids[: -len(self._header)] if list(ids[-len(self._header) :]) == self._header else ids)
        while self._marker[START] in ids[at:]:
            begin = ids.index(self._marker[START], at) + 1
            at = ids.index(self._marker[END], begin) if self._marker[END] in ids[begin:] else len(ids)
            role, _, content = self.decode(ids[begin:at]).partition("\n")
            out.append((role, content.removeprefix("\n\n\n\n") if role == "assistant" else content))  # the think block
        return out

    def extend(self, ids: Sequence[int], user: str) -> list[int]:
        """Goes on after a completion: the ids as they are, the closing marker if missing, and the next user turn.

        The earlier part is never rendered again: the template would drop its empty think block, and text need not
        encode to the ids that were sampled.
        """
        closing = [] if ids and ids[-1] == self._marker[END] else [self._marker[END]]
        return [*ids, *closing, *self._newline, *self._turn("user", user), *self._header]

    def fit(self, system: str, user: str, max_tokens: int) -> tuple[list[int], bool]:
        """A prompt of at most `max_tokens` ids: the middle of the user text is taken out if it must be.

        Returns:
          (ids, cut): `cut` is True if text was taken out. Head and tail of the user text stay, cut at token borders
          that do not split a character; system text and template are never cut.

        Raises:
          ValueError: even with an empty user text the prompt is too long.
        """
        ids = self.prompt(system, user)
        if len(ids) <= max_tokens:
            return ids, False
        room = max_tokens - len(self.prompt(system, ""))
        if room < 0:
            raise ValueError(
                f"template and system text take {max_tokens - room} tokens, max_prompt_tokens is {max_tokens}; shorten "
                "the role prompt or raise max_prompt_tokens"
            )
        encoding, first = self._encoding("user\n" + user), len(self.encode("user\n"))
        gap = self.encode(GAP)
        gap = gap if room > 2 * len(gap) else []
        head = first + (room - len(gap) + 1) // 2
        tail = len(encoding.ids) - (room - len(gap)) // 2
        while head > first and _splits_character(encoding.offsets, head):
            head -= 1
        while tail < len(encoding.ids) and _splits_character(encoding.offsets, tail):
            tail += 1
        body = [*encoding.ids[:head], *gap, *encoding.ids[tail:]]
        turns = self._turn("system", system) if system else []
        return [*turns, self._marker[START], *body, self._marker[END], *self._newline, *self._header], True

    def brief(self, text: str, max_tokens: int = 1024) -> str:
        """What a structure passes on: the final program or answer line, and as much of the text before it as fits.

        A text of at most `max_tokens` tokens stays as it is. Otherwise whole lines are left out: first what stands
        after the answer, then from the beginning. A program that is too long alone keeps its first lines.
        """
        if len(self.encode(text)) <= max_tokens:
            return text
        lines = text.splitlines(keepends=True)
        begin, end = _answer_lines(lines)
        if len(self.encode("".join(lines[begin:end]))) > max_tokens:
            return self._first_lines(lines[begin:end], max_tokens)
        low, high = 0, begin  # smallest first line with which everything fits
        while low < high:
            middle = (low + high) // 2
            if len(self.encode("".join(lines[middle:end]))) <= max_tokens:
                high = middle
            else:
                low = middle + 1
        return "".join(lines[low:end]).strip("\n")

    def _first_lines(self, lines: list[str], max_tokens: int) -> str:
        kept = ""
        for line in lines:
            if len(self.encode(kept + line)) > max_tokens:
                break
            kept += line
        if kept:
            return kept
        encoding = self._encoding(lines[0])  # one endless line: its head, by characters
        stop = max_tokens
        while stop and len(self.encode(lines[0][: encoding.offsets[stop][0]])) > max_tokens:
            stop -= 1
        return lines[0][: encoding.offsets[stop][0]]

    def _turn(self, role: str, content: str) -> list[int]:
        # Role and content are one piece of text for the official template too: a leading newline joins the role's.
        return [self._marker[START], *self.encode(f"{role}\n{content}"), self._marker[END], *self._newline]

    def _encoding(self, text: str) -> Any:
        text = text.encode("utf-8", "replace").decode("utf-8")
        return self._plain.encode(text, add_special_tokens=False)


def train_bpe(texts: Iterable[str], vocab_size: int, folder: str) -> None:
    """Trains a byte-level BPE and writes it into `folder`. The same texts give the same files.

    `tokenizer.json` is what `Chat` works with, and comes last; the template beside it is for other programs.

    Digits are single tokens. Merges may cross spaces but not lines: the tiny language repeats whole phrases, and a
    phrase that is one token leaves a small model less to learn.

    Args:
      texts: what the tokenizer should be short on.
      vocab_size: entries at most, the five markers included; at least 261.
      folder: made if missing.

    Raises:
      ValueError: `vocab_size` leaves no room for 256 bytes and the markers.
    """
    room = vocab_size - len(MARKERS)
    if room < 256:
        raise ValueError(f"vocab_size is {vocab_size}; 256 bytes and {len(MARKERS)} markers need {256 + len(MARKERS)}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(r"[0-9]|\n+|[^0-9\n]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=room, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    texts = list(texts)
    # Every prompt carries the template's words, which the texts do not show.
    tokenizer.train_from_iterator([*texts, *["system\n\nuser\n\nassistant\n\n"] * max(2, len(texts))], trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = _marker_tokens(len(spec["model"]["vocab"]))
    path = Path(folder) / "tokenizer.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    others = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END_OF_TEXT, "chat_template": JINJA
    }  # fmt: skip
    path.with_name("tokenizer_config.json").write_text(json.dumps(others, indent=2) + "\n", encoding="utf-8")
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    unfinished.replace(path)


def _marker_tokens(first: int) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": first + i, "content": m, **flags} for i, m in enumerate(MARKERS)]


def _byte_tokenizer() -> dict[str, Any]:
    """A `tokenizer.json` in which id b is byte b."""
    # The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others for characters from 256 up.
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    vocab = {chr(b if b in printable else next(others)): b for b in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(  # type: ignore[assignment]
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return json.loads(tokenizer.to_str()) | {"added_tokens": _marker_tokens(256)}


def _read(folder: str) -> tuple[dict[str, Any], str]:
    """The tokenizer and, if the folder has one, the model's own chat template."""
    path = Path(folder) / "tokenizer.json"
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        if missing := {"model", "added_tokens"} - set(spec):
            raise ValueError(f"tokenizer.json has no {' and no '.join(sorted(missing))}")
        config, jinja = path.with_name("tokenizer_config.json"), path.with_name("chat_template.jinja")
        template = json.loads(config.read_text(encoding="utf-8")).get("chat_template", "") if config.exists() else ""
        template = jinja.read_text(encoding="utf-8") if jinja.exists() else template
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot read the tokenizer in {folder!r}: {error}; give a folder with tokenizer.json"
        ) from error
    return spec, template


def _splits_character(offsets: list[tuple[int, int]], at: int) -> bool:
    """True if the tokens before and after border `at` hold bytes of the same character."""
    return 0 < at < len(offsets) and offsets[at][0] < offsets[at - 1][1]


def _answer_lines(lines: list[str]) -> tuple[int, int]:
    """Lines [begin, end) of the final program or, if that stands later, of the final answer."""
    fences = [i for i, line in enumerate(lines) if re.match(r" {0,3}(```|~~~)", line)]
    program = (len(lines), 0)
    if fences:
        open_at_end = len(fences) % 2 == 1
        program = (fences[-1], len(lines)) if open_at_end else (fences[-2], fences[-1] + 1)
    boxed = [i for i, line in enumerate(lines) if "\\boxed" in line]
    if boxed and boxed[-1] >= program[1]:
        end = boxed[-1] + 1
        while end < len(lines) and (part := "".join(lines[boxed[-1] : end])).count("{") > part.count("}"):
            end += 1
        return boxed[-1], end
    if fences:
        return program
    last = max((i for i, line in enumerate(lines) if line.strip()), default=0)
    return last, last + 1
