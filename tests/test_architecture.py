"""The rules of doc/developing.rst, checked: layers, rows, what is public and documented."""

import ast
import functools
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import skcfl
from skcfl.federation.pool import ClientPool

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "skcfl"

# The rooms of the package by floors, from the top to the bottom; imports go downwards only. A room
# is a folder or a module of skcfl. Rooms of one floor may use each other, but never in a circle.
LAYERS = (
    {"formula"},
    {"estimators"},
    {"base", "certificates"},
    {"fusion", "personal"},
    {"rounds", "pooling"},
    {"search"},
    {"reports"},
    {"models"},
    {"federation", "penalties", "graphs"},
    {"calls"},
    {"clients"},
    {"numerics"},
    {"exceptions", "_checks", "_option_objects", "_progress", "_typing"},
)
# Beside the layers: what is below may not know them, and they use these units only.
BESIDE = {
    "testing": {"calls", "federation", "models", "penalties", "_checks", "_typing"},
    "datasets": {"clients", "exceptions", "_checks", "_typing"},
    "metrics": {"exceptions"},
    "model_selection": {"clients", "numerics", "exceptions", "_checks", "_typing", "metrics"},
    "inspection": {
        "clients",
        "numerics",
        "exceptions",
        "_checks",
        "_typing",
        "metrics",
        "model_selection",
        "penalties",
    },
}
# Rooms of the server: they hold parameters and messages, never rows.
SERVER_SIDE = {
    *{"estimators", "fusion", "personal", "rounds", "pooling", "search"},
    *{"penalties", "graphs", "numerics", "reports"},
}
# Those that solve on a pool.
SOLVERS = {"fusion", "personal", "rounds", "pooling", "search", "certificates"}
# What users call on rows before a fit, where they have them all: solvers never do.
BEFORE_FIT = {("graphs", "kl_graph"), ("graphs", "kl_divergences")}
# Units whose methods users do not call themselves.
DEVELOPERS = {
    "models",
    "calls",
    "clients",
    "federation",
    "rounds",
    "fusion",
    "personal",
    "pooling",
    "search",
    "penalties",
    "graphs",
    "testing",
}
# Slow to import and not needed to fit: only what draws or tests may import them, when it does.
OPTIONAL = {"matplotlib", "pandas", "cvxpy", "networkx", "torch", "sphinx", "pytest"}
OPTIONAL |= {"dask", "distributed", "nvflare", "cryptography", "dp_accounting", "formulae"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def unit_of(path):
    """Return the unit a file belongs to, None for ``skcfl/__init__.py``."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return None if name == "__init__" else name


def modules_of(units):
    return [path for path in MODULES if unit_of(path) in units]


@functools.cache
def nodes_of(path):
    """Nodes of a file's syntax tree; the first is the module."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def for_type_checkers(path):
    """Nodes under ``if TYPE_CHECKING``, which never run."""
    blocks = [
        node
        for node in nodes_of(path)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    ]
    return {inner for block in blocks for node in block.body for inner in ast.walk(node)}


def imports_of(path):
    """Yield (line, dotted name) of all imports of a file, also those inside functions.

    What is imported for its type only is left out.
    """
    package = ["skcfl", *path.relative_to(PACKAGE).parts[:-1]]
    for node in nodes_of(path):
        if node in for_type_checkers(path):
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def internal_imports(path):
    """Yield (line, unit) for imports of other units of skcfl; None for names of ``skcfl``."""
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "skcfl":
            continue
        unit = parts[1] if len(parts) > 1 else None
        if unit is not None and not any(
            (PACKAGE / f"{unit}{suffix}").exists() for suffix in (".py", "/__init__.py")
        ):
            unit = None  # `from skcfl import IFCA`: a name of the top, which is above every layer
        if unit is None or unit != unit_of(path):
            yield line, unit


def relative(path):
    return str(path.relative_to(ROOT))


def assert_none(wrong):
    """Nothing is wrong; else all of it is printed, a line each."""
    wrong = list(wrong)
    assert not wrong, "\n".join(map(str, wrong))


def test_every_room_has_a_floor():
    known = set().union(*LAYERS) | set(BESIDE)
    unknown = {unit_of(path) for path in MODULES} - known - {None}
    assert not unknown, f"give {sorted(unknown)} a layer in LAYERS or BESIDE of this file"


def test_the_package_has_few_modules_beside_its_rooms():
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_no_file_is_longer_than_a_sitting():
    lengths = {relative(p): len(p.read_text(encoding="utf-8").splitlines()) for p in MODULES}
    assert not {path: n for path, n in lengths.items() if n > 700}


def test_no_two_files_share_a_name():
    names = [path.stem.strip("_") for path in MODULES if path.stem != "__init__"]
    assert sorted(names) == sorted(set(names))


def allowed(unit):
    """Units that one may import."""
    if unit in BESIDE:
        return BESIDE[unit]
    depth = next(i for i, layer in enumerate(LAYERS) if unit in layer)
    below = set().union(*LAYERS[depth:])
    # The top may use what stands beside.
    below |= set(BESIDE) - {"inspection", "testing"} if unit == "estimators" else set()
    # What servers hold of the clients is a pool; models and kernels are none of theirs.
    return below - ({"models"} if unit in SOLVERS else set())


def test_imports_go_downwards():
    """But for skcfl/__init__.py, which collects the public names."""
    assert_none(
        f"{relative(path)}, line {line}: {target or 'skcfl itself'} may not be imported"
        for path in MODULES
        if unit_of(path) is not None
        for line, target in internal_imports(path)
        if target not in allowed(unit_of(path))
    )


def test_rooms_do_not_import_each_other_in_circles():
    graph = {}
    for path in MODULES:
        if unit_of(path) is not None:
            graph.setdefault(unit_of(path), set()).update(u for _, u in internal_imports(path))
    while graph:
        leaves = {unit for unit, targets in graph.items() if not targets & graph.keys()}
        assert leaves, f"a circle of imports among {sorted(graph)}"
        graph = {unit: targets for unit, targets in graph.items() if unit not in leaves}


def test_the_servers_half_of_a_call_sees_no_rows():
    """What takes a pool names nothing that clients have, and looks at no private part of it."""
    wrong = []
    for path in modules_of({"calls"}):
        for function in nodes_of(path):
            if not isinstance(function, ast.FunctionDef):
                continue
            if "pool" not in {argument.arg for argument in function.args.args}:
                continue
            for node in ast.walk(function):
                named = isinstance(node, ast.Name) and node.id
                private = isinstance(node, ast.Attribute) and ast.unparse(node).startswith(
                    "pool._"
                )
                if private or named in {"X", "y", "block", "clients", "rows"}:
                    wrong.append(f"{relative(path)}, line {node.lineno}: {ast.unparse(node)}")
    assert_none(wrong)


def shown_rows(node, rows):
    """What a node of server-side code says of rows, None if it says nothing."""
    if isinstance(node, ast.arg) and node.arg in rows:
        return f"parameter {node.arg}"
    if isinstance(node, ast.Name) and node.id in rows:
        return f"variable {node.id}"
    if isinstance(node, ast.Attribute):
        holder = getattr(node.value, "id", getattr(node.value, "attr", ""))  # pool, self.pool
        if holder.endswith("pool") and node.attr.startswith(("_", "X", "y", "block")):
            return f"{holder}.{node.attr}: the pool's public methods are its interface"
        if node.attr in rows:
            return f"attribute .{node.attr}"
    return None


def test_rows_never_leave_the_client_side():
    """Server-side code names no rows, and gets at none through the pool.

    In fusion problems ``X`` may be the papers' matrix of the clients' models x_i;
    elsewhere the letter means rows, and ``y``, their weights and ids always do.
    """
    always, wrong = {"y", "X_train", "y_train", "sample_weight"}, []
    for path in modules_of(SERVER_SIDE):
        rows = always if unit_of(path) in {"fusion", "numerics"} else always | {"X"}
        before_fit = {
            inner
            for node in nodes_of(path)[0].body
            if (unit_of(path), getattr(node, "name", "")) in BEFORE_FIT
            for inner in ast.walk(node)
        }
        for node in nodes_of(path):
            said = None if node in before_fit else shown_rows(node, rows)
            if said:
                wrong.append(f"{relative(path)}, line {node.lineno}: {said}")
    assert_none(wrong)


def test_servers_know_the_pool_only():
    """Of the clients' side a server may use what a pool is made of, never blocks or folds."""
    inner = tuple(f"skcfl.federation.{name}." for name in ("blocks", "folds", "scaling"))
    assert_none(
        f"{relative(path)}, line {line}: {name}"
        for path in modules_of(SOLVERS)
        for line, name in imports_of(path)
        if name.startswith(inner)
    )


def test_the_kind_of_local_model_is_asked_in_one_place():
    """Models say it, a pool asks it, and the rest has a kind, as rounds/model_kinds.py says."""
    asked = [
        (relative(path), line.strip())
        for path in MODULES
        for line in path.read_text(encoding="utf-8").splitlines()
        if "second_order" in line
    ]
    assert [path for path, _ in asked] == [
        "skcfl/federation/pool.py",
        "skcfl/models/_convex.py",
        "skcfl/models/_spec.py",
    ], asked


def test_optional_packages_are_imported_where_they_are_used():
    """Never at module level, not even in modules that ``import skcfl`` does not load."""
    wrong = []
    for path in MODULES:
        nested = {
            inner
            for node in nodes_of(path)
            if isinstance(node, ast.FunctionDef)
            for inner in ast.walk(node)
        }
        for node in set(nodes_of(path)) - nested - for_type_checkers(path):
            # With a level it is a module of the package, which may be called as what it uses.
            if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
                names = [getattr(node, "module", None) or alias.name for alias in node.names]
                found = OPTIONAL & {name.split(".")[0] for name in names}
                wrong += [f"{relative(path)}, line {node.lineno}: {name}" for name in found]
    assert_none(wrong)


def test_fits_leave_the_filters_of_warnings_alone():
    """``catch_warnings`` is of the whole process: of two threads one would undo the other's."""
    filters = {"catch_warnings", "simplefilter", "filterwarnings"}
    names = {
        path.name
        for path in MODULES
        for node in nodes_of(path)
        if getattr(node, "attr", getattr(node, "id", None)) in filters
    }
    # Scores of clients, and checks of a loss: no fit calls these.
    assert names <= {"_scoring.py", "_loss_checks.py"}


def test_import_is_light():
    """Nothing optional is loaded but what scikit-learn loads itself (it may load pandas)."""
    code = (
        "import sys, sklearn.datasets, sklearn.metrics, sklearn.model_selection\n"
        "before = set(sys.modules)\n"
        "import skcfl, skcfl.federation.dask\n"
        "print(*(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "skcfl" in loaded
    assert not OPTIONAL & loaded


# ------------------------------------------------------------------ public names


def public_modules():
    """Return skcfl and all its modules that have ``__all__`` and no underscore in their path."""
    found = [skcfl]
    for info in pkgutil.walk_packages(skcfl.__path__, "skcfl."):
        if not any(part.startswith("_") for part in info.name.split(".")):
            found.append(importlib.import_module(info.name))
    return [module for module in found if hasattr(module, "__all__")]


def public_names():
    """Return {qualified name: object}, each object once, under its shortest name."""
    names = {}
    for module in public_modules():
        for name in module.__all__:
            names[f"{module.__name__}.{name}"] = getattr(module, name)
    shortest = {}
    for name in sorted(names, key=lambda name: (name.count("."), name)):
        if not inspect.ismodule(names[name]) and not name.rpartition(".")[2].startswith("_"):
            shortest.setdefault(id(names[name]), name)
    return {name: names[name] for name in shortest.values()}


PUBLIC = public_names()
DOCUMENTED = {name: thing for name, thing in PUBLIC.items() if callable(thing)}
CLASSES = {name: thing for name, thing in DOCUMENTED.items() if inspect.isclass(thing)}


def methods_of(cls):
    """Yield (name, method) of the public methods that skcfl itself defines for a class."""
    for name, member in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and member.__module__.startswith("skcfl"):
            yield name, member


METHODS = {
    f"{method.__module__}.{method.__qualname__}": method
    for cls in CLASSES.values()
    for _, method in methods_of(cls)
}


def api_entries():
    """Yield the qualified names in the autosummary tables of doc/api.rst."""
    module, inside = "", False
    for line in (ROOT / "doc" / "api.rst").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = found[1]
        elif line.startswith(".. autosummary::"):
            inside = True
        elif line.strip() and not line.startswith(" "):
            inside = False
        elif inside and (found := re.match(r"\s+~?([A-Za-z_][\w.]*)$", line)):
            yield f"{module}.{found[1]}"


def resolve(name):
    module, parts = name, []
    while True:
        try:
            thing = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            if not module:
                raise
            parts.insert(0, last)
    for part in parts:
        thing = getattr(thing, part)
    return thing


def test_all_is_true():
    for module in public_modules():
        assert len(set(module.__all__)) == len(module.__all__), module.__name__
        missing = [name for name in module.__all__ if not hasattr(module, name)]
        assert not missing, f"{module.__name__}.__all__ names {missing}, which are not there"


def test_every_public_name_is_in_the_reference():
    listed = {id(resolve(name)) for name in api_entries()}
    missing = [name for name, thing in PUBLIC.items() if id(thing) not in listed]
    assert not missing, f"add to doc/api.rst: {missing}"


def test_the_reference_lists_what_exists():
    entries = list(api_entries())
    assert entries
    assert len(set(entries)) == len(entries)
    for name in entries:
        resolve(name)


# ------------------------------------------------------------------ docstrings


def section(doc, title):
    """Return the text of a numpydoc section, None if there is no such section."""
    found = re.search(rf"^{title}\n-{{{len(title)}}}\n", doc, re.M)
    if not found:
        return None
    rest = doc[found.end() :]
    end = re.search(r"^\S.*\n-{3,}\s*$", rest, re.M)
    return rest[: end.start()] if end else rest


def described(text):
    """Return the names that a Parameters or Attributes section describes."""
    names = set()
    for line in (text or "").splitlines():
        if line[:1].strip():
            names.update(re.findall(r"[*\w]+", line.partition(" : ")[0]))
    return {name.lstrip("*") for name in names}


def parameters_of(thing):
    return [
        parameter
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.name not in {"self", "cls"}
    ]


def returns_something(function):
    """Whether a function returns a value or yields, nested functions not counted."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(inspect.unwrap(function))))
    stack = list(ast.iter_child_nodes(tree.body[0]))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        value = getattr(node, "value", None)
        is_none = value is None or (isinstance(value, ast.Constant) and value.value is None)
        if isinstance(node, ast.Yield | ast.YieldFrom) or (
            isinstance(node, ast.Return) and not is_none
        ):
            return True
        stack.extend(ast.iter_child_nodes(node))
    return False


def complaints(thing, doc, *, full):
    """Return what is missing in a docstring; ``full`` also asks for the sections."""
    if not doc:
        return ["no docstring"]
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return []  # their signature is Python's
    wrong = []
    parameters = parameters_of(thing)
    names = described(section(doc, "Parameters"))
    if full or section(doc, "Parameters") is not None:
        missing = [p.name for p in parameters if p.name not in names]
        if missing:
            wrong.append(f"Parameters does not describe {missing}")
    stale = names - {p.name for p in parameters}
    if stale and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        wrong.append(f"Parameters describes {sorted(stale)}, which are not in the signature")
    answers = full and not inspect.isclass(thing) and returns_something(thing)
    if answers and section(doc, "Returns") is None and section(doc, "Yields") is None:
        wrong.append("no Returns section")
    return wrong


def test_public_docstrings():
    wrong = []
    for name, thing in DOCUMENTED.items():
        doc = inspect.cleandoc(thing.__doc__ or "")  # its own, not an inherited one
        for_users = name.split(".")[1] not in DEVELOPERS - {"models"}
        wrong += [f"{name}: {one}" for one in complaints(thing, doc, full=for_users)]
        example = ">>>" in (section(doc, "Examples") or "")
        if for_users and not inspect.isabstract(thing) and not example:
            wrong.append(f"{name}: no Examples section with a runnable example")
    assert_none(wrong)


def test_method_docstrings():
    """What users call describes its parameters, unless there is one and a sentence says it all.

    Methods that only developers call may give the shapes in a sentence, but sections that are
    there have to be right.
    """
    wrong = []
    for name, method in METHODS.items():
        full = len(parameters_of(method)) > 1 and name.split(".")[1] not in DEVELOPERS
        found = complaints(method, inspect.getdoc(method) or "", full=full)
        wrong += [f"{name}: {one}" for one in found]
    assert_none(wrong)


# ------------------------------------------------------------------ README


def test_readme_starts_with_two_commands():
    """First the main job, then the tests; ``.ci/run`` takes both from there and runs them."""
    text = (ROOT / "README.rst").read_text(encoding="utf-8")
    blocks = re.findall(r"^\.\. code-block:: console\n\n((?: {4}.*\n)+)", text, re.M)
    main_job, tests = (block.splitlines() for block in blocks[:2])
    assert len(main_job) == len(tests) == 1
    assert re.match(r" {4}\$ .*examples/quickstart\.py", main_job[0])
    assert re.match(r" {4}\$ .*pytest", tests[0])


def named_in(path):
    """Names in the first cells of a page's tables."""
    text = (ROOT / path).read_text(encoding="utf-8")
    rows = re.findall(r"^   \* - (.*)$", text, re.M)
    return {name for row in rows for name in re.findall(r"`(?:~skcfl\.)?(\w+)`", row)}


def test_readme_and_guide_name_what_exists():
    """Classes of the tables of methods are there, and each estimator is in the guide's."""
    readme, guide = named_in("README.rst"), named_in("doc/which_method.rst")
    assert len(readme) > 10
    assert not [name for name in sorted(readme | guide) if not hasattr(skcfl, name)]
    kinds = r"(Classifier|Regressor)?$"
    fitted = {name for name in skcfl.__all__ if hasattr(getattr(skcfl, name), "fit")}
    methods = {re.sub(kinds, "", name) for name in fitted}
    assert not methods - {re.sub(kinds, "", name) for name in guide}
    assert len((ROOT / "README.rst").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_pool_has_few_public_members():
    """It asks; what is made of the answers is a server's algorithm, or a call's."""
    assert len([name for name in dir(ClientPool) if not name.startswith("_")]) <= 20


def depth(cls):
    """Classes of the package on the longest path from a class to its roots."""
    own = cls.__module__.partition(".")[0] == "skcfl"
    return own + max(map(depth, cls.__bases__), default=0)


def test_estimators_are_shallow():
    """Whoever reads an estimator follows few classes up to its root."""
    classes = [getattr(skcfl, name) for name in skcfl.__all__]
    assert_none(cls for cls in classes if hasattr(cls, "fit") and depth(cls) > 8)
