"""From a final text to a `Verdict`: math or code, correctness plus format bonus (paper, section on rewards)."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import logging
import threading

from metaagent_x.tasks import code as code_grader
from metaagent_x.tasks.math import extract_answer, is_equivalent
from metaagent_x.tasks.task import Rubric, Verdict

_log = logging.getLogger(__name__)


class Grader:
    """Grades texts in threads, at most `workers` at once. One grader serves many coroutines and event loops.

    Correctness is 0 or 1 for math, and for code the share of hidden tests passed ("fraction") or 0 or 1 ("all"; the
    tests after the first that fails are then not run).
    Format is 1 if the answer stands in the required form: a non-empty box, or a program that parses.
    reward = correctness + format_bonus * format.

    Equal (rubric, answer) pairs are graded once: the executions of one design often end in the same program. A failure
    of the grader itself gives a void verdict, is counted in `counts["void"]`, and is tried again next time.

    Attributes:
      counts: verdicts by reason class: "graded", "kept" (taken from memory), "void".
    """

    def __init__(self, *, format_bonus: float = 0.4, code: str = "fraction", workers: int = 4, remember: int = 4096):
        """Args: `format_bonus`: lambda. `code`: "fraction" or "all". `remember`: verdicts kept in memory."""
        if code not in ("fraction", "all"):
            raise ValueError(f"code={code!r} is not one of fraction, all")
        if workers < 1:
            raise ValueError(f"workers={workers} must be at least 1")
        self.format_bonus, self.code, self.remember = format_bonus, code, remember
        self.counts: collections.Counter[str] = collections.Counter()
        self._threads = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="grader")
        self._lock = threading.Lock()
        # The rubric is held beside the future, so that its id stays its own.
        self._known: collections.OrderedDict[tuple[int, str], tuple[Rubric, concurrent.futures.Future[Verdict]]]
        self._known = collections.OrderedDict()

    async def grade(self, rubric: Rubric, text: str) -> Verdict:
        """The verdict on a final text. Never raises for what the text holds; a failing grader gives a void verdict.

        Raises:
          RuntimeError: the grader was closed.
        """
        if rubric.kind == "math":
            answer, missing = extract_answer(text), "no_answer"
        else:
            answer, cut = code_grader.extract_code_with_flag(text)
            missing = "unclosed_fence" if cut else "no_code"
            if answer is not None and code_grader.parse(answer) is None:
                answer, missing = None, "syntax_error"
        if answer is None:
            return Verdict(False, 0.0, 0.0, 0.0, missing)
        # Shielded: a caller that gives up must not cancel the others that wait for the same verdict.
        return await asyncio.shield(asyncio.wrap_future(self._verdict(rubric, answer)))

    def close(self) -> None:
        """Drops what waits, lets what runs end. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _verdict(self, rubric: Rubric, answer: str) -> concurrent.futures.Future[Verdict]:
        key = id(rubric), answer
        with self._lock:
            if key in self._known:
                self.counts["kept"] += 1
                self._known.move_to_end(key)
                return self._known[key][1]
            future = self._threads.submit(self._judge, rubric, answer)
            self._known[key] = rubric, future
            if len(self._known) > self.remember:
                self._known.popitem(last=False)
            return future

    def _judge(self, rubric: Rubric, answer: str) -> Verdict:
        try:
            if rubric.kind == "math":
                fraction, reason = _math(rubric, answer)
            else:
                fraction, reason = _code(rubric, answer, stop=self.code == "all")
        except Exception as failure:
            _log.warning("grading %s failed: %r", rubric.task_id, failure)
            with self._lock:
                self.counts["void"] += 1
                self._known.pop((id(rubric), answer), None)
            return Verdict(False, 0.0, 0.0, 0.0, f"grader: {failure!r}", void=True)
        correct = fraction == 1.0
        with self._lock:
            self.counts["graded"] += 1
        correctness = fraction if self.code == "fraction" else float(correct)
        return Verdict(correct, fraction, 1.0, correctness + self.format_bonus, reason)


def _math(rubric: Rubric, answer: str) -> tuple[float, str]:
    if not rubric.gold:
        raise ValueError(f"rubric of {rubric.task_id} has no gold answer")
    right = any(is_equivalent(answer, gold) for gold in rubric.gold)
    return (1.0, "ok") if right else (0.0, "wrong_answer")


def _code(rubric: Rubric, program: str, stop: bool) -> tuple[float, str]:
    if not rubric.tests:
        raise ValueError(f"rubric of {rubric.task_id} has no tests")
    judgement = code_grader.judge(
        program, rubric.tests, time_limit_s=rubric.time_limit_s, memory_mb=rubric.memory_mb, checker=rubric.checker,
        stop_at_first_failure=stop,
    )  # fmt: skip
    failed = next((i for i, result in enumerate(judgement.per_test) if not result.passed), None)
    reason = "ok" if failed is None else f"test {failed}: {judgement.per_test[failed].status}"
    return judgement.passed / judgement.total, reason
