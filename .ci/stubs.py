"""Write skcfl/estimators/__init__.pyi: constructors that are made when the package is imported.

Type checkers do not run ``everyday_constructor``, so the parameters of the everyday classes are
written out for them. Names and defaults come from the signatures, types from the annotations of
the generic classes and of the mixins. Run ``python .ci/stubs.py`` after a change of either;
tests/test_types.py fails until then.
"""

import inspect
import re
import textwrap
from pathlib import Path

import skcfl.estimators

STUB = Path(skcfl.estimators.__file__).with_suffix(".pyi")
WIDTH = 99
# Where the names of annotations come from.
SOURCES = {
    "collections.abc": ["Callable", "Iterable", "Sequence"],
    "typing": ["Any", "Literal"],
    ".._typing": [
        *("Activation", "Aggregation", "ArrayLike", "ClassWeight", "ClientIds", "ClientLabels"),
        *("Clusterer", "LayerSizes", "RandomState", "Splitter", "Unseen"),
    ],
    "..base": ["BaseFederated"],
    "..fusion.solvers": ["FPFCRounds", "Solver"],
    "..graphs.generators": ["GraphLike"],
    "..models": ["LocalModel"],
    "..models.losses": ["Loss"],
    "..penalties": ["ConcavePenalty", "Penalty"],
    "..search.lam_search": ["LamSearch"],
    "..rounds.record_options": ["Record"],
    "..rounds.training_options": ["Training"],
}


def is_made(cls):
    """Whether a class has a constructor that no type checker can read."""
    return "__signature__" in vars(cls.__init__)


def constructor(cls):
    """The lines of a constructor."""
    hints, words, star = cls.__init__.__annotations__, ["self"], False
    for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        value = parameter.default
        default = f'"{value}"' if isinstance(value, str) else repr(value)
        hint = hints[parameter.name].replace("'", '"')
        words.append(f"{parameter.name}: {hint} = {default}")
    lines = [" " * 7]
    for word in words:
        if len(lines[-1]) + len(word) + 2 > WIDTH:
            lines.append(" " * 7)
        lines[-1] += f" {word},"
    return ["    def __init__(", *lines, "    ) -> None: ..."]


def imports(source, names):
    """The lines of an import."""
    lines = textwrap.wrap(", ".join(names), WIDTH - 4)
    return [f"from {source} import (", *(f"    {line}" for line in lines), ")"]


def text():
    """What the stub has to be."""
    public = {name: getattr(skcfl.estimators, name) for name in skcfl.estimators.__all__}
    made = {name: cls for name, cls in public.items() if is_made(cls)}
    body = []
    for name, cls in sorted(made.items()):
        module = cls.__module__.rpartition(".")[2]
        body += ["", f"class {name}({module}.{name}):", *constructor(cls)]
    words = set(re.findall(r"\w+", re.sub(r'"[^"]*"', "", "\n".join(body))))
    head = ['"""Written by .ci/stubs.py: what type checkers cannot read from code."""', ""]
    for source, names in SOURCES.items():
        used = sorted(words.intersection(names))
        if used:
            head += imports(source, used)
    head += imports(".", sorted({cls.__module__.rpartition(".")[2] for cls in made.values()}))
    for name, cls in sorted(public.items()):
        if name not in made:
            module = cls.__module__.rpartition(".")[2]
            head.append(f"from .{module} import {name} as {name}")
    listed = [f'    "{name}",' for name in skcfl.estimators.__all__]
    return "\n".join([*head, "", "__all__ = [", *listed, "]", *body, ""])


if __name__ == "__main__":
    STUB.write_text(text(), encoding="utf-8")
