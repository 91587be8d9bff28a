"""How lam is chosen: options of the fusion methods."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, StrOptions

from .._checks import Count, Interval, about, caller_level, strengths
from .._option_objects import Options, parameters
from .._typing import Array, ArrayLike, Splitter
from ..federation.presence import comparing
from .alpha import is_automatic
from .candidates import Alphas, Family
from .judges import FoldsJudge, HeldOutLoss
from .models import ModelSearch

if TYPE_CHECKING:
    from ..federation.folds import Fold, Folds
    from ..federation.pool import ClientPool

__all__ = ["LamSearch"]


@parameters
class LamSearch(Options):
    """How ``lam="auto"`` of a fusion method is chosen.

    Parameters
    ----------
    criterion : {"held_out", "bic"}, default="held_out"
        What models are compared by. "held_out" is their loss on rows held out inside the clients,
        or their score on the folds of ``cv``. "bic" is a Bayesian information criterion of the
        partitions, refitted, without folds (the notes of :class:`ConvexClusteredFL` have the
        formula): for crisp clusters, whose number is what one wants to know. The refitted models
        are returned.
    cv : int, cross-validation splitter, list or None, default=None
        Folds to hold rows out by; the best mean score wins. A number of folds takes that many
        rows of every client out in turn (:class:`skcfl.model_selection.ClientKFold`, shuffled by
        ``random_state``). A splitter gets the features without ids, the targets, and the clients'
        positions in ``groups_`` as groups; a list has pairs of positions of training and test
        rows. None holds rows out in each client as the notes say. The same rows in another order
        are dealt to other folds, and may give another ``lam``.
    scoring : str, callable or None, default=None
        What is to be large on the test rows of ``cv``. None is minus the mean loss of the local
        model, a row's weight counted; else a name that scikit-learn knows, such as "accuracy" or
        "roc_auc", or a scorer of predictions, for which all rows of a fold count alike.
    n_lams : int or "auto", default="auto"
        Number of values of ``lam`` to begin with, in equal steps of their logarithm. 0, one model
        for all, and values around the best one are tried too. "auto" is 8, and 30 with ``cv``
        (:class:`FPFC`: 15; "bic": 12, or on a path of convex fusion as many as the partitions
        need). Networks have 8 at most.
    lams : array-like or None, default=None
        Values of ``lam`` to try, and no others; a ``UserWarning`` says where, of three or more,
        the best is the first or the last. None goes from where hardly anything fuses to where
        everything does on all rows, :func:`skcfl.model_selection.lam_max`.
    lam_min_ratio : float or None, default=None
        The least value of ``lam`` over the largest. None finds where hardly anything fuses.
    alphas : array-like or None, default=None
        Local penalties to try at the best ``lam`` and at both of its ends; not for "bic". None
        tries ``alpha``, with ``alpha="auto"`` a standard normal prior once, once per client, and
        the geometric mean of the two: one model for all is first judged with the first, one per
        client with the second, and what lies between with the third.

    See Also
    --------
    ConvexClusteredFL : Convex fusion of all pairs of clients.
    GTV : Convex fusion on a graph of clients.
    FPFC : Fusion with a concave penalty.
    skcfl.model_selection.lam_path : Solutions over lam.

    Notes
    -----
    Without ``cv`` rows are dealt inside the clients to five folds; fewer of many clients, one of
    more than 250,000 parameters of all clients together. What competes is exactly what may be
    returned. Half of the difference to the loss on the rows that models are fitted to is taken
    to fall with the number of rows, for squared losses.

    Of the models within a standard error of the best (one model for all: 1.25, also in signed
    ranks; clusters that are the same in all folds: 2) the one of fewest models is taken, but not
    with a smaller ``alpha``. Ranks take the place of means where one client's loss outweighs all
    other differences. Clusters are not refitted where one of them has fewer rows than parameters,
    and than half of the largest: then of the finer partitions only the clients' own models are
    left.

    With ``cv`` what competes is the same, and the best mean score wins, the middle ``lam`` of
    equal ones. The estimator then also has ``lams_``, ``cv_scores_`` and ``best_index_``. Models
    are fitted to a thousandth while they are compared, and to ``tol`` in the end. Shrinkage helps
    to predict where clients have few rows, so that the best ``lam`` may form fewer or more
    clusters than there are.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressor, LamSearch
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=9, n_clusters=3, random_state=0)
    >>> search = LamSearch(cv=3, n_lams=6)
    >>> fusion = ConvexClusteredFLRegressor(search=search, random_state=0)
    >>> fusion.fit(data.X, data.y, groups=data.groups).n_clusters_
    3
    >>> fusion.cv_scores_.shape == (3, len(fusion.lams_))
    True
    >>> fusion.set_params(search=LamSearch("bic")).fit(data.X, data.y, groups=data.groups).lam_ > 0
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "criterion": [StrOptions({"held_out", "bic"})],
        "cv": [
            Interval(Integral, 2, None, closed="left"),
            HasMethods(["split"]),
            "array-like",
            None,
        ],
        "scoring": [str, callable, None],
        "n_lams": [StrOptions({"auto"}), Count(1, 10**4)],
        "lams": ["array-like", None],
        "lam_min_ratio": [Interval(Real, 1e-30, 1, closed="left"), None],
        "alphas": ["array-like", None],
    }

    criterion: Literal["held_out", "bic"] = "held_out"
    _: KW_ONLY
    cv: int | Splitter | Iterable[Any] | None = None
    scoring: str | Callable[..., Any] | None = None
    n_lams: int | Literal["auto"] = "auto"
    lams: ArrayLike | None = None
    lam_min_ratio: float | None = None
    alphas: ArrayLike | None = None

    def _validate_params(self) -> None:
        super()._validate_params()
        for name, other, wrong in (
            ("cv", "criterion='bic', which holds no rows out", self.criterion == "bic"),
            ("alphas", "criterion='bic', which holds no rows out", self.criterion == "bic"),
            ("scoring", "cv=None: give a number of folds", self.cv is None),
            ("lam_min_ratio", "lams, which are all that is tried", self.lams is not None),
        ):
            if wrong and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} of LamSearch must be None with {other}, got {getattr(self, name)!r}."
                )
        if self.lams is not None and self.n_lams != "auto":
            raise ValueError(
                "n_lams of LamSearch must be 'auto' with lams, which are all that is tried, got "
                f"{self.n_lams!r}."
            )

    @property
    def is_open(self) -> bool:
        """Whether nothing is said about the values to try."""
        return self.lams is None and self.lam_min_ratio is None and self.n_lams == "auto"

    def values(self) -> Array | None:
        """The values of lam that the user gives, ascending; None where they are left open."""
        return None if self.lams is None else strengths(self.lams, "lams")

    def grid(self, problem: Any, n_lams: int, **how: Any) -> Array:
        """Values of lam to begin with: those given, or a grid of the problem.

        Parameters
        ----------
        problem : object
            With ``grid(n_lams, lam_min_ratio, **how)``.
        n_lams : int
            How many, where that is automatic.
        **how
            Handed on to the problem.

        Returns
        -------
        lams : ndarray
            Ascending.
        """
        values = self.values()
        if values is not None:
            return values
        n_lams = n_lams if self.n_lams == "auto" else self.n_lams
        return problem.grid(n_lams, self.lam_min_ratio, **how)

    def deal(self, folds: Folds, rng: np.random.RandomState) -> list[Fold]:
        """The folds of ``cv``.

        Parameters
        ----------
        folds : Folds
            All rows.
        rng : RandomState
            Source of the seed of a number of folds.

        Returns
        -------
        folds : list of Fold
        """
        if isinstance(self.cv, Integral):
            return folds.deal(int(self.cv), int(rng.randint(np.iinfo(np.int32).max)))
        return folds.split(self._splitter())

    def of_one_client(self, n_rows: int) -> tuple[float, dict[str, Any]]:
        """The lam of a single client, whose model any lam gives, and what is published."""
        values = self.values()
        lams = np.zeros(1) if values is None else values
        if self.cv is None:
            return float(lams[-1]), {}
        number = self.cv
        if not isinstance(number, Integral):
            rows = np.zeros((n_rows, 1))
            number = self._splitter().get_n_splits(rows, rows[:, 0], rows[:, 0])
        scores = np.full((number, len(lams)), np.nan)
        return float(lams[-1]), {"lams": lams, "cv_scores": scores, "best_index": len(lams) - 1}

    def holds_rows_out(self, pool: ClientPool) -> bool:
        """Whether models are judged by rows held out; a warning if they should be and cannot.

        Parameters
        ----------
        pool : ClientPool
            The clients.

        Returns
        -------
        judges : bool
        """
        if self.criterion == "bic":
            return False
        if self.cv is None and not HeldOutLoss.can_judge(pool):
            warnings.warn(
                "lam='auto' holds rows out inside clients, but no client has two: partitions are "
                "judged as by search=LamSearch(criterion='bic') instead.",
                UserWarning,
                stacklevel=caller_level(),
            )
            return False
        return True

    def penalised(self, pool: ClientPool) -> tuple[Alphas, ClientPool]:
        """Local penalties that compete, and the pool under the one that lam is sought with.

        Parameters
        ----------
        pool : ClientPool
            The clients.

        Returns
        -------
        alphas : Alphas
        pool : ClientPool
        """
        model = pool.model
        if self.alphas is None:
            alphas = Alphas()
            if is_automatic(pool) and pool.can_answer("solve"):
                alphas = Alphas.automatic(model.alpha_, pool.n_clients)
        else:
            values = strengths(self.alphas, "alphas")
            if not hasattr(model, "alpha_"):
                raise ValueError(
                    f"alphas needs a linear local model, got {type(model).__name__}, which has no "
                    "penalty to choose."
                )
            alphas = Alphas.given(values.tolist())
        return alphas, pool if alphas.inner is None else pool.penalised(alphas.inner)

    def run(
        self,
        families: list[Family],
        problem: Any,
        alphas: Alphas,
        folds: Folds,
        *,
        seeded: bool,
        n_jobs: int | None,
    ) -> ModelSearch:
        """Search among families by rows held out.

        Parameters
        ----------
        families : list of Family
            What competes.
        problem : object
            That of the first family on all rows.
        alphas : Alphas
            Local penalties that compete.
        folds : Folds
            All rows.
        seeded : bool
            If True, the pool's random state deals the rows; if False, they are the same in every
            fit.
        n_jobs : int or None
            Number of jobs.

        Returns
        -------
        search : ModelSearch
            Ended.
        """
        pool = problem.clients
        if self.cv is None:
            rng = pool.random_state if seeded else check_random_state(0)
            judge = HeldOutLoss(pool, rng, problem.exact, problem.trusted)
            if problem.trusted is None and any(True in family.refits for family in families):
                judge.replicate(pool.ledger)
        else:
            if problem.trusted is not None:
                folds = folds.judged_by(problem.trusted)
            dealt = self.deal(folds, pool.random_state)
            judge = FoldsJudge(dealt, self.scoring, pool.random_state)
        simpler = self.cv is None and problem.exact
        search = ModelSearch(families, judge, alphas, simpler, n_jobs)
        with comparing(pool):
            search.run(pool.ledger)
        if search.warning:
            warnings.warn(search.warning, UserWarning, stacklevel=caller_level())
        return search

    def _splitter(self) -> Any:
        with about("cv"):
            return check_cv(self.cv)
