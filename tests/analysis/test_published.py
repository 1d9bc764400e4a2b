"""What was copied from the paper agrees with itself wherever the paper does."""

import pytest

from metaagent_x import config
from metaagent_x.analysis import published

ROWS = [(size, method) for size, rows in published.MAIN.items() for method in rows]


@pytest.mark.parametrize(("size", "method"), ROWS)
def test_an_average_is_that_of_its_cells_or_marked_as_a_misprint(size, method):
    row = published.MAIN[size][method]
    cells = [row[name] for name in published.BENCHMARKS if name in row]
    if not cells:
        return
    agrees = abs(sum(cells) / len(cells) - row["average"]) < 0.00501
    assert agrees != ((size, method, "average") in published.MISPRINTS)


def test_a_misprint_is_marked_where_it_is_shown_and_what_is_unknown_is_a_dash():
    assert published.printed("8B", "metaagent_x", "average") == "38.33*"
    assert published.printed("4B", "metaagent_x", "average") == "34.18"
    assert published.printed("4B", "scoreflow", "aime24") == published.printed("1B", "single", "apps") == "-"


def test_the_schedule_table_shows_means_of_the_main_table():
    row = published.MAIN["8B"]["metaagent_x"]
    stagewise = next(a for a in published.ABLATIONS if a.label == "stagewise")
    for name, cells in (("math", published.MATH), ("code", published.CODE)):
        assert stagewise.cells[name] == pytest.approx(sum(row[c] for c in cells) / 3, abs=0.05)


def test_every_ablation_names_fields_and_values_of_our_settings():
    for row in published.ABLATIONS:
        settings = config.base()
        settings.update(row.settings)
        config.validate(settings)


def test_structures_of_a_benchmark_are_everything_to_a_tenth():
    assert set(published.STRUCTURES) == set(published.BENCHMARKS)
    assert all(sum(row.values()) == pytest.approx(100, abs=0.11) for row in published.STRUCTURES.values())
