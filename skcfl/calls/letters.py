"""Letters of the shapes of calls, see :mod:`skcfl.calls.call`, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

#: Letters of shapes that arguments tell, and how; without the argument they are zero.
LETTERS: dict[str, dict[str, Callable[[Any], int]]] = {
    "theta": {"K": len},
    "shared": {"s": np.count_nonzero},
    "vectors": {"m": lambda vectors: vectors.shape[1]},
    # Observed scores are the first of the drawn ones.
    "n_draws": {"m": lambda n_draws: n_draws + 1},
    "n_columns": {"v": int},
    "n_centres": {"h": int},
    "spreads": {"u": np.size},
    "effects": {"e": np.size},
    "trees": {"t": len, "l": lambda trees: np.shape(trees)[1]},
    "leaves": {"k": np.size},
    "n_leaves": {"k": int},
    "n_bins": {"b": int},
    "frame": {"d": len},
}
NONE = dict.fromkeys("Kvmhuetlkjbd", 0)


def sizes_of(pool, arguments):
    """Values of the letters of the shapes in a call, dict of str to int.

    `pool` is a ClientPool or Site, with `n_clients` and a bound `model`; `arguments` are sent.
    """
    model = pool.model
    sizes = dict(NONE, n=pool.n_clients, p=model.n_params, s=model.n_params)
    sizes.update(C=model.n_classes or 0, q=model.n_representation, f=model.n_features)
    for name, value in arguments.items():
        if value is not None and name in LETTERS:
            for letter, size in LETTERS[name].items():
                sizes[letter] = size(value)
    if arguments.get("curved"):
        sizes["j"] = sizes["k"]
    return sizes
