"""The basis that "auto" takes: straight lines unless curves or trees are clearly better."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..calls.posteriors_asked import Posteriors
from ..federation.lanes import together
from ..federation.ledger import Ledger
from ..federation.made import NoQuantiles, may_choose, quantiles
from ..pooling.basis_choice import LOOK_BINS, may_be_curved, may_have_trees
from ..pooling.basis_options import SplineBasis, TreeBasis
from ..pooling.boosting import grown, straight
from ..pooling.components import fit_population
from ..search.basis import LEAST_CLIENTS, Form, better_form
from .curve_effects import CurveEffects
from .level_effects import OUTER_KNOTS
from .tree_effects import in_units_of, shares_of

# What competes where basis="auto", the simplest first.
BASES: dict[str, Any] = {
    "linear": None,
    "curves": SplineBasis(random="none"),
    "own curves": SplineBasis(),
    "trees": TreeBasis(),
}
# Most exchanges of a fit that competes, and the gain a client that ends it. On seven tables of
# benchmarks/real.py the choices were those of whole fits, in two thirds of the time.
TRIAL, TRIAL_TOL = 20, 1e-3
# Most features, and least rows, with which it does.
MOST_FEATURES, LEAST_ROWS = 40, 30


class BasisChoice(CurveEffects):
    """Base of the estimator that may choose between straight lines, curves and trees."""

    def _better_basis(
        self, federation: Any, hello: Any, header: Any, groups: Any
    ) -> SplineBasis | TreeBasis | None:
        """The basis that "auto" takes: straight lines unless another is clearly better."""
        crossed, nested = self._groupings(self._feature_names(header, hello.n_features))
        small = hello.n_features <= MOST_FEATURES and hello.n_rows >= LEAST_ROWS
        if crossed or nested or not small or self.n_clusters not in ("auto", 1):
            return None
        if self.prior == np.inf:  # maximum likelihood of the model as it is; curves need a prior
            return None
        if not may_choose(federation) or len(hello.ids) < LEAST_CLIENTS:
            return None
        try:
            n_values = self._learn_quantiles(federation, hello, header)
        except NoQuantiles:
            return None
        if n_values.max(initial=0) < 2:
            return None
        _, lines = self._trial(federation, hello, header, groups, None)
        options = self._fit_options(lines.pool, **lines.options)
        population = straight(lines.pool, options)
        looks, pools = [], []
        trial, curved = self._trial(federation, hello, header, groups, BASES["curves"])
        if trial._columns is not None:  # a feature has more than a few values
            is_curve = trial._columns.is_curve
            looks.append(partial(may_be_curved, curved.pool, population, is_curve))
            pools.append(curved.pool)
        if lines.pool.model.loss == "squared_error":
            wide = replace(hello, dtype=np.dtype(float))
            _, task = self._trial(federation, wide, header, groups, BASES["trees"])
            cuts = in_units_of(task.pool, self._cuts(federation, wide, header, _LOOK))
            looks.append(partial(may_have_trees, task.pool, population, cuts, _LOOK, options))
            pools.append(task.pool)
        ledger = Ledger()
        found = list(together(looks, pools, ledger))
        header._trials = [lines.pool.ledger, ledger]
        forms = [self._form("linear", lines)]
        if trial._columns is not None and found[0]:
            _, varied = self._trial(federation, hello, header, groups, BASES["own curves"])
            forms += [self._form("curves", curved), self._form("own curves", varied)]
        if lines.pool.model.loss == "squared_error" and found[-1]:
            header._cuts = self._cuts(federation, wide, header, BASES["trees"])
            forms.append(self._form_of_trees(task, in_units_of(task.pool, header._cuts), header))
        if len(forms) < 2:
            return None
        chosen, header._basis_losses, ledger = better_form(forms)
        header._trials.append(ledger)
        if chosen.name != "trees":
            header._grown = None
        return BASES[chosen.name]

    def _learn_quantiles(self, federation: Any, hello: Any, header: Any) -> Any:
        """Ask at once for the quantiles that knots and looks need; bounds of different values."""
        knots = np.linspace(*OUTER_KNOTS, SplineBasis().n_knots)
        shares = np.union1d(knots, shares_of(LOOK_BINS))
        n_classes = None if hello.classes is None else len(hello.classes)
        wide = replace(hello, dtype=np.dtype(float))
        model = self._local_model().bind(hello.n_features, n_classes, float)
        header._quantiles = shares, *quantiles(federation, model, wide, shares)
        return header._quantiles[2]

    def _trial(self, federation: Any, hello: Any, header: Any, groups: Any, basis: Any) -> Any:
        """A header and the task of a fit with a basis."""
        trial = copy.copy(header)
        if isinstance(basis, TreeBasis):
            basis = None
        made = self._made(federation, hello, trial, basis)
        return trial, self._opened(*made, trial, groups, None, basis)

    def _form(self, name: str, task: Any) -> Form:
        """Straight lines or curves that compete."""

        def fitted(pool: Any) -> Any:
            options = self._fit_options(pool, **task.options)
            options = replace(options, df=np.inf, max_iter=TRIAL, tol=TRIAL_TOL)
            fit = fit_population(pool, "diag", 1, self.n_init, options)[0]
            return pool.ask(Posteriors, *fit.population.arguments)[1]

        return Form(name, task.pool, fitted)

    def _form_of_trees(self, task: Any, cuts: Any, header: Any) -> Form:
        """Trees that compete, which the fit goes on with."""
        options = self._fit_options(task.pool, **task.options)

        def judged(seed: int) -> Any:
            header._grown = grown(task.pool, cuts, BASES["trees"], options, seed)
            return header._grown.totals

        return Form("trees", task.pool, judged=judged)


# The tree of a look: larger than those of a fit, as products of features show below other splits.
_LOOK = TreeBasis(max_bins=LOOK_BINS, max_leaf_nodes=16)
