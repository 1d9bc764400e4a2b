"""Near-duplicates: which pairs of texts count as the same."""

from metaagent_x.distillation.near import Seen, shingles

TEXT = " ".join(f"word{i}" for i in range(100))


def changed(count):
    """The text with so many of its last words replaced."""
    words = TEXT.split()
    return " ".join([*words[: 100 - count], *(f"new{i}" for i in range(count))])


def test_the_share_of_common_shingles_decides():
    # 100 words have 96 shingles. With the last 5 changed 91 are left, and 5 are new: 91 / 101 = 0.90.
    assert len(shingles(TEXT)) == 96 and len(shingles(TEXT) & shingles(changed(5))) == 91
    for limit, same in ((0.85, True), (0.95, False)):
        seen = Seen(limit)
        seen.add(TEXT)
        assert seen.has(changed(5)) is same
        assert not seen.has(changed(60))


def test_at_one_only_layout_is_forgiven():
    seen = Seen(1.0)
    seen.add("Take 3 + 4.\nIt is 7.")
    assert seen.has("take 3+4. It  is 7.")
    assert not seen.has("Take 3 + 5. It is 7.")


def test_candidates_are_found_among_many():
    seen = Seen(0.8)
    for i in range(300):
        seen.add(" ".join(f"{i}x{j}" for j in range(60)))
    seen.add(TEXT)
    assert seen.has(changed(4)) and not seen.has(changed(90))


def test_short_and_odd_texts_are_compared_whole():
    seen = Seen(0.8)
    seen.add("CORRECT")
    seen.add("\ud800")
    assert seen.has("correct") and seen.has("\ud800") and not seen.has("WRONG") and not seen.has("")
