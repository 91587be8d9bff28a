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

    def written(self, owner):
        """Annotated attributes of a class, which are its parameters, and whether by place."""
        cls, placed = self.classes[owner], True
        for n in cls.body if cls.decorator_list else ():
            if isinstance(n, ast.AnnAssign):
                placed = placed and n.target.id != "_"
                if not n.target.id.startswith("_"):
                    yield n.target.id, (n.annotation, n.value, placed, self)

    def parameters(self, owner):
        """The function that has a mixin's parameters."""
        body = self.classes[owner].body
        marked = (n for n in body if isinstance(n, ast.AnnAssign) and n.target.id == "_parameters")
        return self.functions[next(marked).value.id]


def parameters_of(owner, sources):
    """Parameters of a class and its bases: type, default, if by place, and where it is written."""
    source = next(source for source in sources if owner in source.classes)
    inherited = {}
    for base in reversed(source.classes[owner].bases):
        if any(base.id in source.classes for source in sources):
            new = parameters_of(base.id, sources)
            inherited = new | inherited | new
    found = dict(source.written(owner))
    placed = {name: one for name, one in (inherited | found).items() if one[2]}
    return placed | {name: one for name, one in (found | inherited | found).items() if not one[2]}


def parameters_in(source, function):
    """The same of a function that has parameters by keyword only."""
    args = function.args
    triples = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    return {one.arg: (one.annotation, default, False, source) for one, default in triples}


def words_of(parameters, defaults=()):
    """The text of each parameter: its name, type and default."""
    given = {name: (hint, value) for name, (hint, value, *_) in parameters.items()}
    given |= {name: (given[name][0], value) for name, value in dict(defaults).items()}
    for name, nodes in given.items():
        hint, value = (ast.unparse(n).replace("'", '"') for n in nodes)
        yield f"{name}: {hint} = {value}"


def origins_of(parameters):
    """Where the names in the types of parameters come from."""
    return {
        n.id: source.origins.get(n.id)
        for hint, _, _, source in parameters.values()
        for n in ast.walk(hint)
        if isinstance(n, ast.Name)
    }


def twins(source, flavours, sources):
    """Lines of the twins in a module, and where the names in them come from."""
    for cls in source.classes.values():
        for mark in cls.decorator_list:
            call = mark if isinstance(mark, ast.Call) else ast.Call(mark, [], [])
            if isinstance(call.func, ast.Name) and call.func.id == "everyday":
                given = {k.arg: k.value for k in call.keywords}
                yield from twins_of(source, flavours, sources, cls.name, given)


def twins_of(source, flavours, sources, method, given):
    """The classifier and the regressor of a method, with what the decorator is given."""
    network = given.pop("networks", None)
    chosen = {"Classifier": "classifier", "Regressor": "regressor"}
    chosen = {kind: given.pop(key, None) for kind, key in chosen.items()}
    generic = parameters_of(method, sources)
    generic.pop("model")
    for kind, mixin in chosen.items():
        mixins = [mixin.id if mixin else f"{kind}Mixin"]
        mixins += ["NeuralMixin"] if network is None or network.value else []
        more = {}
        for name in mixins:
            where = source if name in source.classes else flavours
            more |= parameters_in(where, where.parameters(name))
        n_placed = sum(placed for _, _, placed, _ in generic.values())
        words = list(words_of(generic, given))
        words[n_placed:n_placed] = words_of(more)
        words.insert(max(n_placed, 1), "*")
        lines = textwrap.wrap(", ".join(["self", *words]), WIDTH - 8, break_long_words=False)
        yield (
            f"{method}{kind}",
            [
                f"class {method}{kind}({method}):",
                "    def __init__(",
                *(f"        {line}" for line in lines),
                "    ) -> None: ...",
                "",
            ],
            {method: source.origins[method]} | origins_of(generic) | origins_of(more),
        )


def text():
    """What the stub has to be."""
    flavours = Source(PACKAGE / "base" / "everyday_models.py", FLAVOURS)
    body, made, origins = [], set(), {}
    paths = sorted((PACKAGE / "estimators").glob("_[a-z]*.py"))
    sources = [Source(path, "..base") for path in (PACKAGE / "base").glob("*.py")]
    sources += [Source(path, f".{path.stem}") for path in paths]
    for source in sources:
        for name, lines, names in twins(source, flavours, sources):
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
