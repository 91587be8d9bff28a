"""FedRep and FedPer: shared layers, and separate layers of each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import MOST_STEPS, Count, Interval
from ..base.everyday import everyday
from ..base.private_plans import rounds_plan
from ..calls.kept_models import Keep, Recall
from ..exceptions import PrivacyError
from ..personal.layers import PartialAverage, least_parts, train_part
from ..personal.shared_rounds import publish, run_shared
from ..rounds.aggregation import aggregate_by_cluster
from ..rounds.alternate import client_weights
from ..rounds.model_kinds import kind_of
from ._base_personal import PersonalMethod, common_rate, layer_mask
from ._by_rounds import training_options


@everyday
class FedRep(PersonalMethod):
    """FedRep and FedPer: shared layers and per-client layers, with any local model.

    For networks of clients that share a representation and differ in the last layer, as where
    labels have other meanings. Not where the features mean other things from client to
    client. With linear models each client has an intercept, and nothing else, of its own.

    All clients have the representation in common, that is the first layers of a network, and each
    has its own last layer, which never leaves it but to be published. Clients train the per-client
    layers first and the shared ones then [1]_, or all at once with ``alternate=False`` [2]_. With
    a linear model the coefficients are shared and the intercepts are per client: fixed effects.
    With squared losses clients solve for their own parameters, and Anderson acceleration finds the
    fixed point of the rounds.

    Parameters
    ----------
    shared_layers : "auto", int, str or list of str
        Layers that all clients have in common: the first so many, or by name
        (``model_.layer_slices()``). "auto" is all but the last; of linear models the
        coefficients, so that clients have intercepts of their own (an error if
        ``fit_intercept=False``). All layers make :class:`FedAvg`, none :class:`LocalModels`.
    alternate : bool
        If True, clients train their last layers first and then the shared ones, which is
        FedRep. If False, all at once, which is FedPer.
    head_steps : int
        Steps of the own layers in a round, with ``alternate``; linear models with squared
        losses solve for them.

    {attributes}

    See Also
    --------
    FedRepClassifier : The same with a linear classifier or a network.
    FedRepRegressor : The same with a linear regressor or a network.
    IFCA : Its ``shared_layers`` share layers between clusters.

    Notes
    -----
    Own layers start where the common start has them. The own layers of the shared model that is
    published are the mean of the clients'.

    References
    ----------
    .. [1] L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. "Exploiting Shared Representations
       for Personalized Federated Learning". ICML 2021. arXiv:2102.07078.
    .. [2] M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary. "Federated Learning with
       Personalization Layers". 2019. arXiv:1912.00818.

    Examples
    --------
    >>> from skcfl import FedRep
    >>> from skcfl.datasets import make_clustered_classification
    >>> from skcfl.models import MLP
    >>> data = make_clustered_classification(n_clients=6, n_clusters=2, random_state=0)
    >>> model = FedRep(MLP(8), max_iter=5, tol=0, random_state=0)
    >>> model.fit(data.X, data.y, groups=data.groups).params_.shape
    (6, 97)
    >>> head = model.model_.layer_slices()["output"]
    >>> bool((model.params_[:, : head.start] == model.cluster_params_[:, : head.start]).all())
    True
    """

    _parameter_constraints = {
        "shared_layers": [
            StrOptions({"auto"}),
            Interval(Integral, 0, None, closed="left"),
            str,
            "array-like",
        ],
        "alternate": ["boolean"],
        "head_steps": [Count(1, MOST_STEPS)],
    }

    shared_layers: int | str | Sequence[str] = "auto"
    _: KW_ONLY
    alternate: bool = True
    head_steps: int = 10
    tol: float = 1e-10

    def _masks(self, pool):
        """Shared parameters, and what clients train in which steps."""
        shared = layer_mask(self.shared_layers, pool.model)
        steps = self._option("training").steps(kind_of(pool).local_steps)
        if not self.alternate:
            return shared, [(steps, np.ones_like(shared))]
        stages = [(self.head_steps, ~shared), (steps, shared)]
        if self._minimises(pool):
            stages = stages[1:]
        return shared, [stage for stage in stages if stage[1].any()]

    def _minimises(self, pool):
        """If True, clients solve for their own layers, instead of steps."""
        return self.alternate and pool.model.quadratic

    def _private_plan(self, model):
        shared = layer_mask(self.shared_layers, model)
        if not shared.any():
            raise PrivacyError("shared_layers must name layers where clients are private.")
        return rounds_plan(self, model, 1, shared=shared)

    def _solve(self, pool):
        options = training_options(self, pool)
        shared, stages = self._masks(pool)
        if not shared.any():
            options = replace(options, tol=0.0)  # nothing that is shared can settle
        rate, average = common_rate(pool, options), self._average(pool)
        exact = self._minimises(pool)
        settles = exact and self._settles(options)
        update = PartialAverage(shared, stages, rate, options, average, exact, settles)
        start = pool.start()
        pool.ask(Keep, start)
        ended = run_shared(pool, update, options, start)
        models = np.tile(ended.theta, (pool.n_clients, 1))
        params = np.array(pool.ask(Recall, models, final=True))
        params[:, shared] = ended.theta[shared]
        weights = client_weights(pool, options)
        theta = weights @ params / max(weights.sum(), 1e-300)
        if options.aggregator is not None:
            labels = np.zeros(pool.n_clients, dtype=np.intp)
            theta = aggregate_by_cluster(options.aggregator, params, labels, 1, weights)[0]
        theta[shared] = ended.theta[shared]
        return publish(pool, options, ended, params, theta)

    def _new_models(self, pool, theta, options):
        """Models of new clients: own layers are trained, the shared ones frozen."""
        shared, _ = self._masks(pool)
        if shared.all():
            return np.tile(theta, (pool.n_clients, 1))
        if self._minimises(pool):
            return least_parts(pool, theta, ~shared)
        steps = self.head_steps * self.n_iter_
        rate = common_rate(pool, options)
        return train_part(pool, theta, ~shared, steps, rate, options)
