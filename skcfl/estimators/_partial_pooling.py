"""Partial pooling: random coefficients, in clusters or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import NOT_NEGATIVE, Count, Interval
from ..base.everyday import everyday
from ..base.everyday_models import PopulationClassifier, PopulationRegressor
from ..base.population_fits import PopulationFits
from ..base.posterior_predictions import PosteriorPredictions
from ..pooling.basis_options import SplineBasis, TreeBasis
from ..pooling.population import COVARIANCES


@everyday(classifier=PopulationClassifier, regressor=PopulationRegressor, networks=False)
class PartialPooling(PopulationFits, PosteriorPredictions):
    """Partial pooling: per-client coefficients, drawn from one population.

    The method to begin with on tables: for clients that differ by degrees, are in clusters or
    do not differ, and it estimates which. Not for networks, nor for losses that are no
    likelihood, such as Huber's (:class:`IFCA`); :class:`ConvexClusteredFL` has proofs.

    The population is normal, or of clusters that are normal about their means with one
    covariance, the heterogeneity model of Verbeke and Lesaffre [1]_. With one cluster it is
    the mixed model with all coefficients random, fitted by maximum likelihood (lme4's ``y ~ x
    + (x | client)`` with ``covariance="full", prior=numpy.inf, df=numpy.inf``; by default
    several covariances are fitted, and clients' coefficients are means over them [4]_, and
    clients may have scales of their own, with t distributions [5]_), exactly for
    squared error and by Laplace's approximation for log loss, counts and amounts. Without
    variance it is one model for all, or one for each cluster; with much of it, a model for
    each client. Counts scatter as much as they do, not as Poisson's distribution has it
    (double Poisson [3]_). A client's prediction is by its posterior mean, which takes from the
    other clients what its rows do not determine.

    The clients send sums of what they know: number, shifts, curvatures and scatter of their
    posteriors. The clusters' means are found by generalised least squares, variances by
    parameter-expanded and extrapolated EM and quasi-Newton steps; the number of clusters by
    ICL [2]_.

    Parameters
    ----------
    n_clusters : "auto" or int
        Number of clusters; those that are no client's most probable one are dropped, see
        ``n_clusters_``. "auto" takes the one of least ICL; several must beat one, a continuum
        of clients, by very strong evidence. See :doc:`/partial_pooling`.
    covariance : {"stacked", "auto", "diag", "full", "spherical"}
        Covariance of the clients' parameters about their cluster's mean. "diag" has a
        variance for each parameter (of standardised features), "full" correlations too, as
        lme4's ``(x | client)``, "spherical" one variance. "auto" is "diag" or, for one
        cluster where BIC prefers it, "full". "stacked" takes a mean of several fits of one
        cluster, see ``stacking_shares_``; it predicts best. Take one covariance to test
        hypotheses.
    random : {"all", "intercept"} or list of str or int
        What differs between clients: all coefficients, the intercept alone, or the intercept
        and the coefficients of the features listed, by name or by position among the features
        (the column of ``group_col`` left out). lme4 writes ``(1 | client)`` for "intercept"
        and ``(x | client)`` for ``["x"]``.
    basis : {"auto", "linear", "splines", "trees"}, SplineBasis or TreeBasis
        What a prediction is a sum of: straight lines of the features, smooth curves
        ("splines" is ``SplineBasis()``), each client's drawn to the population's, or straight
        lines and trees that all clients share ("trees" is ``TreeBasis()``). "auto" keeps
        the lines unless another basis is better on rows held out inside the clients, by more
        than a standard error and 1 %. See :doc:`/partial_pooling`.
    crossed : str, int, list of str or int, or None
        Columns of dense X, by name or position, with ids of other groupings, such as items or
        raters, with levels that many clients meet. The levels have random intercepts with one
        variance a grouping, lme4's ``(1 | item)``. For squared error, two classes or counts,
        the latter by Laplace's approximation, and one cluster. An empty list is no grouping
        and the same likelihood, as lme4's ``glmer`` has it. See :doc:`/partial_pooling`.
    nested : str, int, list of str or int, or None
        Columns with ids of groupings inside the clients, such as classes of a school: an id
        means another level at each client. Random intercepts as for ``crossed``, lme4's
        ``(1 | client:class)``.
    prior : "auto" or float
        Variance of a normal prior of the slopes of the clusters' means (of standardised
        features; intercepts are free). "auto" estimates it by empirical Bayes, draws the
        correlations of a full covariance to zero, and keeps the standard deviation of the
        intercepts off zero; ``numpy.inf`` is no prior, which is maximum likelihood.
    dispersion : "auto" or float
        Scatter of the rows about their expectation: the variance of the noise for squared
        error, one over the shape for the gamma loss, and for counts the variance as a
        multiple of Poisson's. "auto" estimates it, of counts no less than 1. It is 1 for
        classes, and for counts with crossed or nested groupings.
    df : "auto" or float
        Degrees of freedom of the clients' scales, of squared error. With a finite number,
        more than 2, each client has a scale of its own, and outlying clients count less.
        ``numpy.inf`` is one scale for all, as in lme4. "auto" estimates it, and keeps one
        scale unless BIC has very strong evidence against it. See :doc:`/partial_pooling`.
    max_iter : int
        Largest number of exchanges with the clients of the fit of one number of clusters,
        and of each part of a stack. A ``ConvergenceWarning`` is issued if it was not
        enough.
    tol : float
        The fit stops when the log-likelihood has gained less than ``tol`` a client in three
        steps.
    n_init : int
        Starts of each number of clusters by k-means++ of the clients' posterior means,
        besides those that split a cluster of the previous fit.
    unseen : {"error", "average", "largest"}
        Prediction for ids not seen in fit. "error" refuses them; "average" uses the mean of
        the population, ``mixture_weights_ @ cluster_params_``; "largest" the mean of the
        largest cluster. :meth:`adapt` gives a new client its posterior.

    {attributes}

    See Also
    --------
    PartialPoolingClassifier : The same with a linear classifier.
    PartialPoolingRegressor : The same with a linear regressor.
    ConvexClusteredFL : Crisp clusters, with proofs.

    References
    ----------
    .. [1] G. Verbeke, E. Lesaffre. "A Linear Mixed-Effects Model with Heterogeneity in the
       Random-Effects Population". Journal of the American Statistical Association, 1996.
    .. [2] C. Biernacki, G. Celeux, G. Govaert. "Assessing a Mixture Model for Clustering with the
       Integrated Completed Likelihood". IEEE Transactions on Pattern Analysis and Machine
       Intelligence, 2000.
    .. [3] B. Efron. "Double Exponential Families and Their Use in Generalized Linear Regression".
       Journal of the American Statistical Association, 1986.
    .. [4] L. Breiman. "Stacked Regressions". Machine Learning, 1996.
    .. [5] J. C. Pinheiro, C. Liu, Y. N. Wu. "Efficient Algorithms for Robust Estimation in Linear
       Mixed-Effects Models Using the Multivariate t Distribution". Journal of Computational and
       Graphical Statistics, 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import PartialPooling
    >>> rng = np.random.default_rng(0)
    >>> school = np.repeat(np.arange(40), 8)
    >>> x = rng.normal(size=320)
    >>> slope = 2 + 0.5 * rng.normal(size=40)[school]
    >>> y = slope * x + rng.normal(size=320)
    >>> model = PartialPooling().fit(x[:, None], y, groups=school)
    >>> model.n_clusters_
    1
    >>> print(model.summary())
    PartialPooling, loss squared_error, covariance stacked
    320 rows of 40 clients, 1 cluster
    log-likelihood -463.853   BIC 946.149   (covariance diag)
    stacking shares diag 0.00, full 1.00, intercept 0.00, none 0.00
    <BLANKLINE>
    Random effects
                      Std. dev.  Corr
      x0                0.37385
      (Intercept)       0.18293  -0.20
      Residual          0.97158
    <BLANKLINE>
    Fixed effects
                       Estimate    Std. error         z
      x0                 2.0116      0.082249     24.46
      (Intercept)     0.0032485      0.063646      0.05
    <BLANKLINE>
    Slopes and their errors are shrunken by a prior, see prior_variance_.
    The deviation of intercepts is kept off zero by another.
    """

    _parameter_constraints = {
        "n_clusters": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "covariance": [StrOptions({"auto", "stacked", *COVARIANCES})],
        "random": [StrOptions({"all", "intercept"}), "array-like"],
        "basis": [StrOptions({"auto", "linear", "splines", "trees"}), SplineBasis, TreeBasis],
        "crossed": [str, Integral, "array-like", None],
        "nested": [str, Integral, "array-like", None],
        "prior": [StrOptions({"auto"}), Interval(Real, 0, np.inf, closed="right")],
        "dispersion": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "df": [StrOptions({"auto"}), Interval(Real, 2, np.inf, closed="right")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [NOT_NEGATIVE],
        "n_init": [Count(1, 10**6)],
    }

    n_clusters: int | Literal["auto"] = "auto"
    _: KW_ONLY
    covariance: Literal["stacked", "auto", "diag", "full", "spherical"] = "stacked"
    basis: Literal["auto", "linear", "splines", "trees"] | SplineBasis | TreeBasis = "auto"
    crossed: str | int | Sequence[str] | Sequence[int] | None = None
    nested: str | int | Sequence[str] | Sequence[int] | None = None
    random: Literal["all", "intercept"] | Sequence[str] | Sequence[int] = "all"
    prior: float | Literal["auto"] = "auto"
    dispersion: float | Literal["auto"] = "auto"
    df: float | Literal["auto"] = "auto"
    max_iter: int = 1000
    tol: float = 1e-5
    n_init: int = 3
