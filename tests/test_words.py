"""The count of words that readers have to read twice."""

import runpy
from pathlib import Path

import pytest

WORDS = runpy.run_path(str(Path(__file__).resolve().parents[1] / ".ci" / "words.py"))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("# Clients whose rows differ", "whose"),
        ("It is Told of the rows.", "told"),
        ("models, of\nwhich one is kept", "of which"),
        ("Of the clients one is left.", "begins with Of"),
        ("own_losses = 1", "own as a name"),
        ("message.own = 1", "own as a name"),
    ],
)
def test_a_word_is_found_once(text, word):
    assert {name: lines for name, lines in WORDS["find"](text, python=True).items() if lines} == {
        word: [1]
    }


@pytest.mark.parametrize("text", ["# its own rows", "In Python", "one of them", "standalone = 1"])
def test_other_text_is_left(text):
    assert not any(WORDS["find"](text, python=True).values())


def test_names_are_counted_in_code_only():
    assert "own as a name" not in WORDS["find"]("own_losses", python=False)


@pytest.mark.parametrize(
    ("used", "is_over", "budget"), [(1, False, 1), (2, False, 2), (3, True, 2)]
)
def test_budgets_only_fall(used, is_over, budget):
    places = {"doc": {"alone": [f"doc/page.rst:{line}" for line in range(used)]}}
    budgets = {"doc": {"alone": 2}}
    messages = WORDS["over"](places, budgets)
    assert bool(messages) == is_over
    assert all("doc/page.rst:2" in message for message in messages)
    assert WORDS["lowered"](places, budgets) == {"doc": {"alone": budget}}


def test_generated_pages_do_not_count(tmp_path):
    for name in ("page.rst", "generated/page.rst"):
        path = tmp_path / "doc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("It was told.")
    assert WORDS["count"](tmp_path)["doc"]["told"] == ["doc/page.rst:1"]
