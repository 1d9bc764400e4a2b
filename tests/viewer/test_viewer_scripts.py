"""Scripts in colour: every character is kept, whatever a model wrote."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagent_x.viewer.scripts import coloured, lint

PIECES = ["def", "solver", "task", "'", '"""', "f'", "{", "}", "\\", "\n", "\r", "\t", "    ", "#", "1.5e3", "(", ")",
          "\0", "\u2028", "é", "𝒳", "\f", "x = ", "0x", "if"]  # fmt: skip


def text_of(lines):
    return "\n".join("".join(part for _, part in line) for line in lines)


def test_words_keywords_texts_numbers_and_comments_have_their_colours():
    (line,) = coloured('if solver: x = "a" + 12  # why')
    assert [(kind, part) for kind, part in line if kind] == [
        ("keyword", "if"), ("word", "solver"), ("string", '"a"'), ("number", "12"), ("comment", "# why"),
    ]  # fmt: skip


def test_a_text_over_several_lines_is_coloured_on_each():
    lines = coloured('a = """one\ntwo"""\nb = 1')
    assert lines[1] == [("string", 'two"""')] and lines[2] == [("", "b = "), ("number", "1")]
    assert lines[0] == [("", "a = "), ("string", '"""one')]


def test_what_cannot_be_read_is_plain_from_there_on():
    lines = coloured("answer = solver(\n'never closed\nmore")
    assert lines[0][0] == ("word", "answer") and text_of(lines) == "answer = solver(\n'never closed\nmore"


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_no_character_is_lost_or_added(text):
    assert text_of(coloured(text)) == text


@pytest.mark.parametrize("text", ["(" * 5000, "\0", "x = 0" + "_0" * 9000, "é" * 5, "if:\n", "lambda: " * 400])
def test_lint_answers_about_any_text(text):
    assert all({"line", "word", "hint"} == set(problem) for problem in lint(text))
