"""The basis that "auto" takes: straight lines unless curves or trees are clearly better.

Other bases compete while straight lines are fitted: what they ask does not wait for that fit.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..calls.posteriors_asked import Posteriors
from ..federation.lanes import asked_at_once
from ..federation.made import NoQuantiles, may_choose
from ..numerics.newton import MAX_DENSE
from ..pooling.basis_choice import LOOK_BINS, may_be_curved, may_have_trees
from ..pooling.basis_options import SplineBasis, TreeBasis
from ..pooling.boosting import grown, straight
from ..pooling.components import fit_population
from ..search.basis import LEAST_CLIENTS, Form, better_form
from .designs import OUTER_KNOTS, grouped, made
from .tree_effects import cuts_of, in_units_of, shares_of

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
# Most columns of a basis that competes, beyond which means are found step by step, and least rows.
MOST_COLUMNS, LEAST_ROWS = MAX_DENSE - 1, 30


class OtherBasis(Exception):
    """Raised in a fit of straight lines where another basis is clearly better."""


class Competition:
    """Curves and trees that compete with the straight lines of a fit.

    Parameters
    ----------
    estimator : PartialPooling
        The estimator that is fitted.
    lines : Task
        The fit of straight lines.

    Attributes
    ----------
    chosen : SplineBasis, TreeBasis or None
        The basis that is clearly better; None is straight lines.
    losses : dict of str to float
        Mean loss of a row held out, by basis, as far as they competed.
    """

    def __init__(self, estimator: Any, lines: Any) -> None:
        self.estimator, self.lines, self.draft = estimator, lines, lines.header._draft
        self.chosen: SplineBasis | TreeBasis | None = None
        self.losses: dict[str, float] = {}
        self.may_be, self.curved, self.is_curve = False, None, None

    def prepare(self, pool: Any) -> None:
        """Learn quantiles of the features and open the clients with the columns of curves."""
        try:
            n_values = self._learn_quantiles(pool)
        except NoQuantiles:
            return
        self.may_be = bool(n_values.max(initial=0) >= 2)
        if not self.may_be:
            return
        columns, opened = self._trial("curves", pool)
        # None where no feature has more than a few values.
        if columns is not None and len(columns.names) <= MOST_COLUMNS:
            self.curved, self.is_curve = opened(), columns.is_curve

    def choose(self, pool: Any, population: Any) -> None:
        """Choose by rows held out, after a look at what straight lines leave.

        Parameters
        ----------
        pool : ClientPool
            The clients, with straight lines.
        population : Population
            Of one cluster, fitted to straight lines.
        """
        if not self.may_be:
            return
        if population.kind != "diag" or np.isfinite(population.df):
            population = straight(pool, self._options(pool, self.lines))
        forms: list[Form] = []
        if self.curved is not None:
            look = partial(may_be_curved, population=population, is_curve=self.is_curve)
            (found,) = asked_at_once((self.curved.pool, look), ledger=pool.ledger)
            if found:
                varied = self._trial("own curves", pool)[1]()
                forms = [self._form("curves", self.curved), self._form("own curves", varied)]
        trees = self._form_of_trees(self._with_trees(pool), population)
        if forms or self._looked(trees, pool):
            forms.append(trees)
        if not forms:
            return
        forms.insert(0, self._form("linear", replace(self.lines, pool=pool.lane())))
        best, self.losses, ledger = better_form(forms)
        pool.ledger.take_over([ledger])
        self.chosen = BASES[best.name]
        if best.name != "trees":
            self.draft.grown = None

    @staticmethod
    def _looked(form: Form, pool: Any) -> bool:
        """Take the look at a form before any is judged."""
        found = form.may_compete()
        pool.ledger.take_over([form.pool.ledger])
        return found

    def _learn_quantiles(self, pool: Any) -> Any:
        """Ask at once for the quantiles that knots and looks need; bounds of different values."""
        knots = np.linspace(*OUTER_KNOTS, SplineBasis().n_knots)
        shares = np.union1d(knots, shares_of(LOOK_BINS))
        found = self.draft.ask_quantiles(self.estimator, shares, pool.ledger)
        self.draft.quantiles = shares, *found
        return found[1]

    def _trial(self, name: str, pool: Any, wide: bool = False) -> Any:
        """The columns of a fit with a basis, and a function that opens its task."""
        basis = None if isinstance(BASES[name], TreeBasis) else BASES[name]
        trial, hello = copy.copy(self.lines.header), self.draft.hello
        trial._draft = copy.copy(self.draft)
        hello = replace(hello, dtype=np.dtype(float)) if wide else hello
        clients = made(self.estimator, hello, trial, basis)

        def opened() -> Any:
            task = self.estimator._opened(*clients, trial, basis)
            pool.ledger.take_over([task.pool.ledger])
            return task

        return trial._design.columns, opened

    def _with_trees(self, pool: Any) -> Any:
        """The task of straight lines with trees beside, in double precision."""
        if pool.dtype == np.dtype(float):
            return replace(self.lines, pool=pool.lane())
        return self._trial("trees", pool, wide=True)[1]()

    def _options(self, pool: Any, task: Any) -> Any:
        about = {name: task.options[name] for name in ("varying", "blocks")}
        return self.estimator._fit_options(pool, **about)

    def _form(self, name: str, task: Any) -> Form:
        """Straight lines or curves that compete."""

        def fitted(pool: Any) -> Any:
            options = replace(self._options(pool, task), df=np.inf, max_iter=TRIAL, tol=TRIAL_TOL)
            fit = fit_population(pool, "diag", 1, self.estimator.n_init, options)[0]
            return pool.ask(Posteriors, *fit.population.arguments)[1]

        return Form(name, task.pool, fitted)

    def _form_of_trees(self, task: Any, population: Any) -> Form:
        """Trees that compete if a look at them says so, which the fit goes on with."""
        options, draft = self._options(task.pool, task), self.draft

        def bins_of(basis: TreeBasis) -> Any:
            cuts = cuts_of(self.estimator, draft, basis)
            return cuts, in_units_of(task.pool, cuts)

        def competes() -> bool:
            return may_have_trees(task.pool, population, bins_of(_LOOK)[1], _LOOK, options)

        def judged() -> Any:
            draft.cuts, cuts = bins_of(BASES["trees"])
            draft.book(task.pool)
            draft.grown = grown(task.pool, cuts, BASES["trees"], options)
            return draft.grown.totals

        return Form("trees", task.pool, judged=judged, competes=competes)


def bases_compete(estimator: Any, federation: Any, hello: Any) -> bool:
    """True if curves and trees compete where ``basis="auto"``."""
    small = hello.n_features <= MOST_COLUMNS and hello.n_rows >= LEAST_ROWS
    if grouped(estimator) or not small or estimator.n_clusters not in ("auto", 1):
        return False
    if estimator.prior == np.inf:  # maximum likelihood of the model as it is; curves need a prior
        return False
    return may_choose(federation) and len(hello.ids) >= LEAST_CLIENTS


# The tree of a look: larger than those of a fit, as products of features show below other splits.
_LOOK = TreeBasis(max_bins=LOOK_BINS, max_leaf_nodes=16)
