"""Count words that readers have to read twice, and hold each to a budget that only falls.

``python .ci/words.py`` counts them in ``skcfl/`` and ``doc/`` and compares the counts with the
budgets in ``words.json`` beside this file. Above a budget it ends with an error that lists the
lines of the word; ``--lower`` lowers the budgets that have become too large, and never raises one.
"""

import argparse
import io
import json
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = Path(__file__).with_suffix(".json")
FOLDERS = {"skcfl": "*.py", "doc": "*.rst"}
# Words of gossip, pronouns without a noun, and sentences whose subject comes last.
PATTERNS = {
    "told": r"\btold\b",
    "whose": r"\bwhose\b",
    "alone": r"\balone\b",
    "apart": r"\bapart\b",
    "nobody": r"\bnobody\b",
    "of which": r"\bof\s+which\b",
    **{f"begins with {word}": rf"\b{word}\s+[a-z]" for word in ("Of", "In", "Where", "By")},
}
# Names of variables, parameters and attributes that say only that something belongs to somebody.
OWN = re.compile(r"_?own|_?own_\w+|\w+_own")


def find(text, python):
    """Lines of the words in a text, by word; those of names only where it is Python."""
    lines = {
        word: [
            text.count("\n", 0, hit.start()) + 1
            for hit in re.finditer(pattern, text, 0 if "begins" in word else re.IGNORECASE)
        ]
        for word, pattern in PATTERNS.items()
    }
    if python:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        lines["own as a name"] = [
            token.start[0]
            for token in tokens
            if token.type == tokenize.NAME and OWN.fullmatch(token.string)
        ]
    return lines


def count(root):
    """Places of each word, by folder and word."""
    places = {}
    for folder, pattern in FOLDERS.items():
        for path in sorted((root / folder).rglob(pattern)):
            if {"generated", "auto_examples", "_build"} & set(path.parts):
                continue
            for word, lines in find(path.read_text(encoding="utf-8"), pattern == "*.py").items():
                found = places.setdefault(folder, {}).setdefault(word, [])
                found += [f"{path.relative_to(root)}:{line}" for line in lines]
    return places


def over(places, budgets):
    """Messages about the words that are used more often than their budget allows."""
    return [
        f"{folder}: {word!r} is there {len(found)} times, and at most {budgets[folder][word]} are "
        "allowed. Name the client, server, array or cluster instead, subject first. It is in\n  "
        + "\n  ".join(found)
        for folder, words in places.items()
        for word, found in words.items()
        if len(found) > budgets[folder][word]
    ]


def lowered(places, budgets):
    """Budgets that no word exceeds by chance: the smaller of the old one and the count."""
    return {
        folder: {
            word: min(len(found), budgets.get(folder, {}).get(word, len(found)))
            for word, found in words.items()
        }
        for folder, words in places.items()
    }


def main():
    """Compare the counts with the budgets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lower", action="store_true", help="write the budgets that have fallen")
    arguments = parser.parse_args()
    places = count(ROOT)
    budgets = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    if arguments.lower:
        budgets = lowered(places, budgets)
        BUDGETS.write_text(json.dumps(budgets, indent=2) + "\n")
    errors = over(places, budgets)
    if errors:
        sys.exit("\n".join(errors))
    for folder, words in places.items():
        print(folder + ": " + ", ".join(f"{word} {len(at)}" for word, at in words.items()))


if __name__ == "__main__":
    main()
