"""Per-FedAvg: a shared model that is good after one more step of each client."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import MOST_STEPS, POSITIVE, Count
from ..base.everyday import everyday
from ..personal.one_step import MetaAverage, one_step
from ..personal.shared_rounds import publish, run_shared
from ..rounds.model_kinds import kind_of
from ..rounds.update import client_curvatures
from ..search.pull import choose_pull
from ._base_personal import PersonalMethod, common_rate
from ._by_rounds import training_options

# Default inner steps of networks, found by trial: on digits, and in regression, where curvatures
# are some times as large.
NETWORK_INNER, REGRESSION_INNER = 0.1, 0.03
# Inner step of linear models, as a part of the step that removes the curvature, and with it the
# information, along the steepest direction.
INNER = 0.9
# Numbers of such steps that "auto" tries.
PERSONAL_STEPS = 1, 3, 10, 30, 100


@everyday
class PerFedAvg(PersonalMethod):
    """Per-FedAvg: a shared model to take gradient steps from, with any local model.

    For new clients with few rows, which are to take some gradient steps from a shared model. Not
    for crisp clusters, where cluster models (:class:`IFCA`) are better.

    The shared model minimises the mean of ``f_i(w - a grad f_i(w))``: it is the best to start
    from, not the best itself. The per-client model is one step from there on all of the client's
    rows [1]_, or some more.

    Parameters
    ----------
    inner_step : "auto" or float
        The paper's alpha: length of the gradient step of a client's own, which the shared
        model is trained for. "auto" is 0.9 over the client's curvature for linear models,
        and 0.1 for networks in classification, 0.03 in regression.
    personal_steps : "auto" or int
        How many such steps, on all of its rows, a client takes from the shared model to its
        own. The shared model is trained for one, the paper's; "auto" judges 1 to 100 on rows
        held out inside the clients (four folds; networks: a fourth of each client's rows).
    exact : "auto" or bool
        If True, gradients pass through the inner step, by products with the Hessian. If False,
        they leave its derivative out (the paper's first-order variant). "auto" does where
        there are second derivatives, that is for linear models.

    Attributes
    ----------
    personal_steps_ : int
        The number of steps.
    personal_steps_search_ : dict of str to ndarray
        With ``personal_steps="auto"``, "personal_steps" and "held_out_loss" of what was tried
        (several clients).

    See Also
    --------
    PerFedAvgClassifier : The same with a linear classifier or a network.
    PerFedAvgRegressor : The same with a linear regressor or a network.
    Ditto : The client's own model is the minimum of an objective.

    Notes
    -----
    A local step draws two batches, one for the inner gradient and one for the outer (all rows for
    both where ``batch_size`` is None). The public code sets both step lengths to .005, leaves the
    second derivative out, and takes the personal step of one batch.

    References
    ----------
    .. [1] A. Fallah, A. Mokhtari, A. Ozdaglar. "Personalized Federated Learning with Theoretical
       Guarantees: A Model-Agnostic Meta-Learning Approach". NeurIPS 2020. arXiv:2002.07948.

    Examples
    --------
    >>> from skcfl import PerFedAvg
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
    >>> model = PerFedAvg().fit(data.X, data.y, groups=data.groups)
    >>> model.coef_.shape, model.cluster_coef_.shape
    ((6, 10), (1, 10))
    """

    _parameter_constraints = {
        "inner_step": [POSITIVE, StrOptions({"auto"})],
        "personal_steps": [Count(1, MOST_STEPS), StrOptions({"auto"})],
        "exact": ["boolean", StrOptions({"auto"})],
    }

    _: KW_ONLY
    inner_step: float | Literal["auto"] = "auto"
    personal_steps: int | Literal["auto"] = "auto"
    exact: bool | Literal["auto"] = "auto"
    tol: float = 1e-10

    def _solve(self, pool):
        options = training_options(self, pool)
        steps, search = self._chosen("personal_steps", pool, options)
        ended = self._rounds(pool, options)
        params = one_step(pool, ended.theta, self._inner(pool), int(steps))
        pool.ledger.book(up=pool.n_clients * pool.n_params, clients=pool.n_clients)
        return publish(pool, options, ended, params, personal_steps=int(steps), **search)

    def _rounds(self, pool, options):
        kind = kind_of(pool)
        exact = kind.exact if self.exact == "auto" else bool(self.exact)
        rate = common_rate(pool, options)
        update = MetaAverage(
            self._option("training").steps(kind.local_steps),
            rate,
            self._inner(pool),
            exact,
            options,
            self._average(pool),
            accelerate=kind.exact and self._settles(options) and pool.model.bounded_curvature,
        )
        return run_shared(pool, update, options)

    def _choose(self, pool, options):
        """Number of personal steps by rows held out, and what was tried."""

        def fit(part, steps):
            inner, models = self._inner(part), [self._rounds(part, options).theta]
            for more in np.diff(steps, prepend=0):
                models.append(one_step(part, models[-1], inner, int(more)))
            return models[1:]

        robust = options.aggregator is not None
        return choose_pull(pool, np.array(PERSONAL_STEPS), fit, robust, "personal_steps")

    def _inner(self, pool):
        """Inner step of each client."""
        step = self.inner_step
        if step == "auto" and kind_of(pool).exact:
            return INNER / client_curvatures(pool)
        if step == "auto":
            step = REGRESSION_INNER if pool.model.n_classes is None else NETWORK_INNER
        return np.full(pool.n_clients, float(step))

    def _new_models(self, pool, theta, options):
        """Models of new clients: steps from the shared one."""
        return one_step(pool, theta, self._inner(pool), self.personal_steps_)
