"""Write skcfl/estimators/__init__.pyi: classes that are made when the package is imported.

Type checkers do not run ``everyday``, so the twins that it makes are written out for them: from
the sources, which are parsed and not run.  It is a hook of the build: the stub is in the wheel
and, after an editable install, in the folder, and not in the repository.  ``python .ci/stubs.py``
writes it anew.
"""

import ast
import textwrap
from pathlib import Path

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # not in a build
    BuildHookInterface = object

PACKAGE = Path(__file__).resolve().parents[1] / "skcfl"
STUB = PACKAGE / "estimators" / "__init__.pyi"
FLAVOURS = "..base.everyday_models"
WIDTH = 99


class Source:
    """The classes of a module, and where the names come from that it imports."""

    def __init__(self, path, module):
        self.module = module
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.origins = {
            alias.asname or alias.name: "." * n.level + (n.module or "")
            for n in ast.walk(tree)
            if isinstance(n, ast.ImportFrom)
            for alias in n.names
        } | dict.fromkeys(self.classes, module)

    def constructor(self, owner):
        """The constructor of a class."""
        body = self.classes[owner].body
        return next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == "__init__")

    def parameters(self, owner):
        """The function that has a mixin's parameters."""
        body = self.classes[owner].body
        marked = (n for n in body if isinstance(n, ast.AnnAssign) and n.target.id == "_parameters")
        return self.functions[next(marked).value.id]


def words_of(function, defaults):
    """Parameters of a function by kind: name, and the text of the name, its type and default."""
    a, found = function.args, {"placed": {}, "named": {}}
    own = len(a.args) - len(a.defaults)
    placed = zip(a.args[own:], a.defaults, strict=True)
    named = zip(a.kwonlyargs, a.kw_defaults, strict=True)
    for kind, pairs in (("placed", placed), ("named", named)):
        for one, default in pairs:
            default = defaults.get(one.arg, default)
            hint, value = (ast.unparse(n).replace("'", '"') for n in (one.annotation, default))
            found[kind][one.arg] = f"{one.arg}: {hint} = {value}"
    return found


def names_in(function):
    """Names in the types of a function's parameters."""
    hints = [one.annotation for one in (*function.args.args, *function.args.kwonlyargs)]
    return {n.id for h in hints if h for n in ast.walk(h) if isinstance(n, ast.Name)}


def twins(source, flavours):
    """Lines of the twins in a module, and where the names in them come from."""
    for cls in source.classes.values():
        for mark in cls.decorator_list:
            call = mark if isinstance(mark, ast.Call) else ast.Call(mark, [], [])
            if isinstance(call.func, ast.Name) and call.func.id == "everyday":
                given = {k.arg: k.value for k in call.keywords}
                yield from twins_of(source, flavours, cls.name, given)


def twins_of(source, flavours, method, given):
    """The classifier and the regressor of a method, with what the decorator is given."""
    network = given.pop("networks", None)
    chosen = {"Classifier": "classifier", "Regressor": "regressor"}
    chosen = {kind: given.pop(key, None) for kind, key in chosen.items()}
    for kind, mixin in chosen.items():
        mixins = [mixin.id if mixin else f"{kind}Mixin"]
        mixins += ["NeuralMixin"] if network is None or network.value else []
        generic = source.constructor(method)
        origins = {method: source.origins[method]}
        origins |= {name: source.origins.get(name) for name in names_in(generic)}
        parts = words_of(generic, given)
        parts["placed"].pop("model")
        more = {}
        for name in mixins:
            where = source if name in source.classes else flavours
            function = where.parameters(name)
            more |= words_of(function, {})["named"]
            origins |= {name: where.origins.get(name) for name in names_in(function)}
        placed, named = list(parts["placed"].values()), list(parts["named"].values())
        more = list(more.values())
        if not placed:
            placed, more = more[:1], more[1:]
        words = ["self", *placed, "*", *more, *named]
        lines = textwrap.wrap(", ".join(words), WIDTH - 8, break_long_words=False)
        yield (
            f"{method}{kind}",
            [
                f"class {method}{kind}({method}):",
                "    def __init__(",
                *(f"        {line}" for line in lines),
                "    ) -> None: ...",
                "",
            ],
            origins,
        )


def text():
    """What the stub has to be."""
    flavours = Source(PACKAGE / "base" / "everyday_models.py", FLAVOURS)
    body, made, origins = [], set(), {}
    for path in sorted((PACKAGE / "estimators").glob("_[a-z]*.py")):
        for name, lines, names in twins(Source(path, f".{path.stem}"), flavours):
            body += lines
            made.add(name)
            origins |= {n: o for n, o in names.items() if o is not None}
    public = Source(PACKAGE / "estimators" / "__init__.py", "").origins
    head = ['"""Written by .ci/stubs.py: what type checkers cannot read from code."""', ""]
    used = sorted((o, n) for n, o in origins.items() if n not in public)
    head += [f"from {o} import {n}" for o, n in used]
    head += [f"from {o} import {n} as {n}" for n, o in sorted(public.items()) if n not in made]
    listed = [f'    "{name}",' for name in sorted(public)]
    return "\n".join([*head, "", "__all__ = [", *listed, "]", "", *body])


class Stubs(BuildHookInterface):
    """Writes the stub before the package is built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        """Write it, and put it into the wheel, which leaves out what git ignores."""
        STUB.write_text(text(), encoding="utf-8")
        build_data["artifacts"].append("skcfl/estimators/__init__.pyi")


if __name__ == "__main__":
    STUB.write_text(text(), encoding="utf-8")
