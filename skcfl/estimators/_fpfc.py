"""FPFC: fusion of clients with a concave penalty."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import NOT_NEGATIVE, Interval
from .._typing import ArrayLike
from ..base import BaseFederated
from ..base.everyday import everyday
from ..fusion.fpfc_fits import FPFCFits
from ..fusion.robust_problem import ClientLimits
from ..fusion.solvers import FPFCRounds
from ..penalties import CONCAVE, ConcavePenalty
from ..rounds.round_options import STEPS
from ..rounds.training_options import Training
from ..search.lam_search import LamSearch
from ._lam_choice import LamChoiceMixin, check_bounded


@everyday
class FPFC(LamChoiceMixin, BaseFederated):
    r"""Fusion penalised federated clustering with any local model.

    For an unknown number of clusters of clients, with linear models or networks, if
    clusters are well separated and their models should not be biased towards each other. Not
    where the clusters are to be proved: the problem is not convex
    (:class:`ConvexClusteredFL`).

    .. math:: \min_{w_1, \dots, w_m} \; \sum_i f_i(w_i)
              + \frac{s}{m} \sum_{i<j} g_\lambda(\|w_i - w_j\|)

    Every client has a model :math:`w_i`, and a concave penalty draws those of alike clients
    together: the number of clusters is found (Yu et al. [1]_).  Beyond :math:`a \lambda` the
    penalty g, a smoothed SCAD, is constant, so that unlike clients do not pull at each other and
    clusters are not biased, as they are with a norm (:class:`ConvexClusteredFL`).  In exchange
    the problem is not convex: the result depends on the start, and is a stationary point.

    In every round some clients take some steps on their own rows, drawn to a model the server
    sends them; the server then updates all pairs.  Local models need no second derivatives.

    Parameters
    ----------
    lam : "auto" or float
        The paper's lambda, not negative: 0 gives every client its own model. Models nearer
        than about ``lam`` are drawn together, models farther apart than ``a * lam`` are
        independent of each other, so that ``a * lam`` should lie between the distances of
        local models within and between clusters. "auto" tries a grid from the least to the
        largest distance, 0, and one model for all, and takes the best by ``search``.
    penalty : {"scad", "mcp", "l2", "l1"}, SCAD or MCP
        The function of a pair's difference. "scad", the paper's, and "mcp" are concave: they
        do not bias distant clusters. An object has parameters, such as
        ``SCAD(a=5.0, scale=1.0)``; the estimator's ``lam`` replaces its own. "l2" and "l1" are
        norms, for comparison; ``ConvexClusteredFL(lam=lam / n_clients)`` has the same
        solution.
    solver : FPFCRounds or None
        What the server does in a round, and when the rounds end before ``tol``, see
        :class:`skcfl.fusion.solvers.FPFCRounds`; None is its defaults.
    refit : bool
        If True, each cluster's model is fitted anew on the pooled rows of its clients. False
        gives a cluster the mean of its clients' models, weighted by their rows, as in the
        paper. The clients' own models are kept in ``fusion_params_``.
    init : {"auto", "local", "common"} or array-like of shape (n_clients, n_params)
        Models to start from. "local" is each client's own converged model; "auto" is the same,
        drawn a little to the common model, because local models of few rows are mostly noise
        (not for networks). "common" is the same model for all, as in the paper, from which a
        narrow range of ``lam`` finds clusters. An array gives them, in the order of the
        sorted ids.
    max_iter : "auto" or int
        Most rounds (for every ``lam`` that is tried); a ``ConvergenceWarning`` says what was
        missing when they were not enough. "auto" is 500 over ``participation``.
    tol : float
        Stationarity residual at which the rounds end, relative to the clients' gradients
        before any training and to the distances of the local models. 0 runs all ``max_iter``
        rounds.
    warm_start : bool
        If True, start from the models of the last fit, if it was of as many clients and
        parameters; with the same penalty and ``rho`` the rounds just go on. As the problem is
        not convex, the result depends on the start.

    Attributes
    ----------
    lam_ : float
        The ``lam`` of the fit.
    fusion_params_ : ndarray of shape (n_clients, n_params)
        The clients' own models at the end of the rounds.
    penalty_scale_ : float
        The factor of the penalty.
    rho_ : float
        Weight of the augmented term; NaN where no rounds were run, as at ``lam=0``.
    nu_ : float
        The threshold of clusters.
    residual_ : float
        Stationarity residual: the larger of the clients' gradients of the objective over those
        before any training, and of ``w_i - w_j - theta_ij`` over the distances of the local
        models, both root mean squares. Where a settled partition ended the rounds it is
        larger than ``tol``.
    objective_ : float
        Value of the penalised objective at ``fusion_params_``.
    n_iter_ : int
        Number of rounds at ``lam_``.
    history_ : dict of str to ndarray
        What happened at ``lam_`` from check to check: the round; the objective, the augmented
        Lagrangian and the residual; the residual of theta; number of clusters; participants
        and numbers sent to and by the server since the last check, its own cost included.

    See Also
    --------
    FPFCClassifier : The same with a linear classifier or a network.
    FPFCRegressor : The same with a linear regressor or a network.
    ConvexClusteredFL : Convex fusion, with certificates.
    IFCA : Number of clusters given.

    Notes
    -----
    ``lam`` is the paper's :math:`\lambda`, with ``SCAD(scale=1)`` as the paper writes it.  It is
    not the ``lam`` of :class:`ConvexClusteredFL`: g is not homogeneous.  A ``lam`` so small that
    all distances are beyond :math:`a \lambda` leaves every client its local model; one so large
    that the distances between clusters are not fuses all.  The scale s, starts and networks have
    a section in the :ref:`guide <fpfc-details>`.

    References
    ----------
    .. [1] X. Yu, Z. Liu, Y. Sun, W. Wang. "Clustered Federated Learning for Heterogeneous Data
       (Student Abstract)". AAAI Conference on Artificial Intelligence, 2023.

    Examples
    --------
    >>> from skcfl import FPFC
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.models import LinearModel
    >>> data = make_clustered_regression(n_clients=8, n_clusters=2, random_state=0)
    >>> fusion = FPFC(LinearModel(loss="huber"))
    >>> fusion.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([4, 4])
    """

    _option_classes = {
        **LamChoiceMixin._option_classes,
        "solver": FPFCRounds,
        "training": Training,
    }
    _option_names = {"training": (*STEPS, "participation")}

    # As of other fused methods.
    _mixes_newcomers = False

    _parameter_constraints = {
        "lam": [StrOptions({"auto"}), NOT_NEGATIVE],
        "penalty": [StrOptions({*CONCAVE, "l1", "l2"}), ConcavePenalty],
        "refit": ["boolean"],
        "solver": [FPFCRounds, None],
        "training": [Training, None],
        "init": [StrOptions({"auto", "local", "common"}), "array-like"],
        "max_iter": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
    }

    lam: float | Literal["auto"] = "auto"
    _: KW_ONLY
    penalty: Literal["scad", "mcp", "l2", "l1"] | ConcavePenalty = "scad"
    refit: bool = True
    search: LamSearch | None = None
    client_loss: float | Literal["huber"] | None = None
    solver: FPFCRounds | None = None
    training: Training | None = None
    init: Literal["auto", "local", "common"] | ArrayLike = "auto"
    max_iter: int | Literal["auto"] = "auto"
    tol: float = 1e-5
    warm_start: bool = False

    def _places_absent(self):
        return not isinstance(self.init, str) or np.ndim(self._option("training").local_steps) > 0

    def _solve(self, pool, folds):
        if self.client_loss is None:
            return self._fit(pool, folds)
        check_bounded(self, pool)
        limits = ClientLimits(pool, self._bound())
        if limits.trusted.all():
            result = self._fit(pool, folds)
        else:
            given = {"init": self.init, "local_steps": self._option("training").local_steps}
            for name, value in given.items():
                if not isinstance(value, (str, Integral)):
                    raise ValueError(
                        f"{name} must be a name or a number with client_loss, which leaves "
                        f"{int((~limits.trusted).sum())} clients out of the rounds, got an array."
                    )
            folds = folds.judged_by(limits.trusted, alone=True)
            result = _with_the_rest(self._fit(pool.subset(limits.trusted), folds), limits)
        result.extra["suspicion"] = limits.suspicion
        return result

    def _fit(self, pool, folds):
        fits, search = self._fits(), self._option("search")
        if self.lam != "auto" or pool.n_clients == 1:
            lam, published = self.lam, {}
            if lam == "auto":
                lam, published = search.of_one_client(pool.n_samples)
            last = getattr(self, "_warm", None) if self.warm_start else None
            result, state = fits.at(pool, lam, last)
            result.extra.update(published)
        elif search.holds_rows_out(pool):
            alphas, pool = search.penalised(pool)
            problem = fits.problem(pool)
            found = search.run(
                [fits.family(problem, search)],
                problem,
                alphas,
                folds,
                seeded=self.random_state is not None,
                n_jobs=self.n_jobs,
            )
            result, state = fits.best(problem, found)
        else:
            return fits.of_least_criterion(pool, search)
        if self.warm_start:
            self._warm = state
        return result

    def _fits(self):
        return FPFCFits(
            penalty=self.penalty,
            init=self.init,
            refit=self.refit,
            rounds=self._option("solver"),
            training=self._option("training"),
            max_iter=self.max_iter,
            tol=self.tol,
        )

    def _problem(self, pool):
        return self._fits().problem(pool)

    def _path(self, problem, lams):
        return self._fits().path(problem, lams)


def _with_the_rest(result, limits):
    """Result of all clients: those who are left out keep their own models, a cluster each."""
    here, n = limits.trusted, len(limits.trusted)
    others = limits.models[~here]
    labels, K = np.empty(n, dtype=np.intp), len(result.cluster_params)
    labels[here], labels[~here] = result.labels, K + np.arange(len(others))
    models = np.empty(limits.models.shape)
    models[here], models[~here] = result.extra["fusion_params"], others
    result.labels, result.extra["fusion_params"] = labels, models
    result.cluster_params = np.vstack([result.cluster_params, others])
    return result
