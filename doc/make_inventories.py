"""Write the inventory of scikit-learn's names, which the documentation links to.

A Sphinx inventory is usually fetched from the other package's site.  The documentation of skcfl is
built without a network, so the inventory is kept in the repository; the pages of scikit-learn's
API have regular addresses, and the installed package says which names there are::

    python doc/make_inventories.py
"""

import importlib
import zlib
from pathlib import Path

import sklearn
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.utils.discovery import all_displays, all_estimators, all_functions

HEADER = """# Sphinx inventory version 2
# Project: scikit-learn
# Version: {version}
# The remainder of this file is compressed using zlib.
"""
OTHERS = {
    "sklearn.utils.Bunch": "class",
    "sklearn.pipeline.Pipeline": "class",
    "sklearn.model_selection.GroupKFold": "class",
    "sklearn.model_selection.StratifiedKFold": "class",
}
#: Modules in the order in which a public name is looked for.
MODULES = [
    *("base", "calibration", "cluster", "compose", "covariance", "datasets", "decomposition"),
    *("dummy", "ensemble", "exceptions", "feature_extraction", "feature_selection", "impute"),
    *("gaussian_process", "inspection", "isotonic", "kernel_approximation", "linear_model"),
    *("manifold", "metrics", "mixture", "model_selection", "multiclass", "multioutput"),
    *("naive_bayes", "neighbors", "neural_network", "pipeline", "preprocessing"),
    *("random_projection", "semi_supervised", "svm", "tree", "utils"),
]


def names():
    """Public names of scikit-learn with their kind, such as ``{"sklearn.svm.SVC": "class"}``."""
    kinds = {thing: "class" for _, thing in [*all_estimators(), *all_displays()]}
    kinds |= {thing: "function" for _, thing in all_functions()}
    found = dict(OTHERS)
    for module in MODULES:
        public = importlib.import_module(f"sklearn.{module}")
        for name in getattr(public, "__all__", dir(public)):
            thing = getattr(public, name, None)
            try:
                kind = kinds.get(thing)
            except TypeError:  # what cannot be hashed is no class and no function
                continue
            if kind:
                found[f"sklearn.{module}.{name}"] = kind
    return found


def main():
    """Write ``inventories/sklearn.inv``."""
    lines = [
        f"{name} py:{kind} 1 modules/generated/{name}.html#$ -\n"
        for name, kind in sorted(names().items())
    ]
    path = Path(__file__).parent / "inventories" / "sklearn.inv"
    head = HEADER.format(version=sklearn.__version__).encode()
    path.write_bytes(head + zlib.compress("".join(lines).encode(), 9))
    print(f"{path}: {len(lines)} names")


if __name__ == "__main__":
    main()
