"""pFedMe: own models pulled to a shared one that minimises the Moreau envelopes."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from numbers import Integral, Real
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import POSITIVE, Interval
from ..base.everyday import everyday
from ..base.private_plans import rounds_plan, strength
from ..personal.proximal import MOREAU, pulled_models
from ..personal.shared_rounds import publish, run_shared
from ..rounds.model_kinds import kind_of
from ..search.pull import choose_pull, pull_grid
from ._base_personal import PersonalMethod
from ._by_rounds import training_options

# Local steps to a proximal point.
PROX_STEPS = 5


@everyday
class PFedMe(PersonalMethod):
    """pFedMe: per-client models pulled to a shared one, by Moreau envelopes, any local model.

    For clients that differ by degrees from one shared model, by the published method.
    :class:`Ditto` has the same aim with the shared model of federated averaging. Not for crisp
    clusters, where cluster models (:class:`IFCA`) are better.

    The shared model minimises the mean of the clients' ``min f_i(v) + lam / 2 ||v - w||^2`` and is
    the mean of the per-client models, which are where these minima are taken [1]_. With linear
    models proximal points are exact, and Anderson acceleration finds the fixed point of the rounds
    in which the server averages them.

    Parameters
    ----------
    lam : "auto" or float
        Strength of the pull of the clients' own models to the shared one, positive. "auto"
        judges five strengths on rows held out inside the clients (four folds; networks: a
        fourth of each client's rows, in about five times the time of one fit).
    beta : float
        How far the shared model moves to the mean of the clients' in a round: all the way by
        default. The public code's default of 0 never moves it, and is refused.
    outer_step : "auto" or float
        The paper's eta: a client's centre moves by ``outer_step * lam`` of its distance to
        the proximal point. "auto" is ``1 / lam``, all the way.
    local_rounds : "auto" or int
        Moves of a client's centre in a round, the paper's R. "auto" is 1 for linear models,
        with which the rounds end at the minimum, and 2 for networks. More of them drift from
        it where clients differ.

    Attributes
    ----------
    lam_ : float
        The strength of the pull.
    lam_search_ : dict of str to ndarray
        With ``lam="auto"``, "lam" and "held_out_loss" of what was tried (several clients).

    See Also
    --------
    PFedMeClassifier : The same with a linear classifier or a network.
    PFedMeRegressor : The same with a linear regressor or a network.
    Ditto : The shared model is that of federated averaging.

    Notes
    -----
    The pull acts on standardised coefficients with ``standardize=True``. In the public code
    ``beta=0``, its default, leaves the server's model where it started; the paper's experiments
    have beta from 1 to 4. There a client's centre takes 20 moves of ``outer_step=0.005`` at
    ``lam=15`` in a round.

    References
    ----------
    .. [1] C. T. Dinh, N. H. Tran, T. D. Nguyen. "Personalized Federated Learning with Moreau
       Envelopes". NeurIPS 2020. arXiv:2006.08848.

    Examples
    --------
    The shared model is the mean of the clients' own, by their rows:

    >>> import numpy as np
    >>> from skcfl import PFedMe
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
    >>> model = PFedMe(lam=0.5, tol=1e-8).fit(data.X, data.y, groups=data.groups)
    >>> n = np.unique(data.groups, return_counts=True)[1]
    >>> bool(np.allclose(model.cluster_coef_[0], n / n.sum() @ model.coef_))
    True
    """

    _parameter_constraints = {
        "lam": [POSITIVE, StrOptions({"auto"})],
        "beta": [Interval(Real, 0, 100, closed="right")],
        "outer_step": [POSITIVE, StrOptions({"auto"})],
        "local_rounds": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }

    _local_steps, _keeps_curvatures = PROX_STEPS, True

    lam: float | Literal["auto"] = "auto"
    _: KW_ONLY
    beta: float = 1.0
    outer_step: float | Literal["auto"] = "auto"
    local_rounds: int | Literal["auto"] = "auto"
    tol: float = 1e-10

    def _private_plan(self, model):
        lam = strength(self.lam)
        return rounds_plan(self, model, 1, lam, lam)

    def _update(self, pool, options, lam):
        return MOREAU[kind_of(pool)](
            lam,
            float(self.beta),
            1.0 / lam if self.outer_step == "auto" else float(self.outer_step),
            self.local_rounds,
            options,
            options.local_steps,
            self._average(pool),
        )

    def _solve(self, pool):
        options = training_options(self, pool)
        lam, search = self._chosen("lam", pool, options)
        update = self._update(pool, options, lam)
        ended = run_shared(pool, update, options)
        params = self._pulled(pool, ended.theta, lam, options)
        return publish(pool, options, ended, params, lam=lam, **search)

    def _choose(self, pool, options):
        """Strength of the pull by rows held out, and the values that were tried."""
        robust = options.aggregator is not None
        lams = pull_grid(pool, 5, (1e-2, 1e2), robust)[1:-1]
        # All clients take part where strengths are compared.
        options = replace(options, participation=1.0)

        def fit(part, lams):
            theta = None
            for lam in lams:
                # Training is as long from one start for all; minima start from one another.
                start = theta if kind_of(part).exact else None
                theta = run_shared(part, self._update(part, options, lam), options, start).theta
                yield self._pulled(part, theta, lam, options)

        return choose_pull(pool, lams, fit, robust)

    def _new_models(self, pool, theta, options):
        """Models of new clients: their proximal points."""
        return self._pulled(pool, theta, self.lam_, options)

    @staticmethod
    def _pulled(pool, theta, lam, options):
        """The clients' models, pulled to a shared one that they do not have yet."""
        centers = np.tile(theta, (pool.n_clients, 1))
        return pulled_models(pool, centers, lam, options, kept=False)
