"""No known fault is forgotten in silence."""

import fault_coverage
import pytest
from fault_coverage import LISTS, NOT_DUE, covered, listed, marked, problems


@pytest.mark.skipif(not (LISTS / "faults.md").exists(), reason="the fault lists are not beside this checkout")
def test_every_known_fault_has_a_test_or_a_reason():
    known = listed(LISTS)
    assert len(known) > 100
    assert problems(known, covered(), NOT_DUE) == []


def test_marks_are_found_wherever_they_stand():
    source = (
        '@pytest.mark.fault("F001")\n@mark.fault("B002", "F003")\ndef test(): pass\n'
        'pytestmark = [pytest.mark.fault("F004")]'
    )
    assert sorted(marked(source)) == ["B002", "F001", "F003", "F004"]
    assert marked('@pytest.mark.slow\ndef test(): "F005"') == []


def test_each_kind_of_gap_is_named():
    known = {"F001": "a", "F002": "b", "F003": "c"}
    tests = {"F001": ["test_x.py"], "F009": ["test_x.py"]}
    found = problems(known, tests, {"part": ("later", "F001 F002"), "other": ("later", "F002")})
    assert found == [
        "F003 has no test and no reason in NOT_DUE (c)",
        "F001 has a test (['test_x.py']): take it off NOT_DUE",
        "F002 stands in NOT_DUE twice",
        "F009 is not in the fault lists",
    ]


def test_rows_are_read_from_both_lists(tmp_path):
    (tmp_path / "faults.md").write_text("| id | area |\n|---|---|\n| F001 | logging | wrong mean (a) | check |\n")
    (tmp_path / "bugs.md").write_text("| B002 | fork bomb | source | x |\n")
    assert fault_coverage.listed(tmp_path) == {"F001": "logging: wrong mean (a)", "B002": "fork bomb"}
