"""Shared descriptions of parameters and fitted attributes.

Three flavours of every method have some thirty parameters in common. Their class docstrings hold
the placeholders ``{use}``, ``{parameters}``, ``{attributes}`` and ``{references}``, each on its
own line. :func:`document` fills the first with what the method is for, the last from
``_doc_references`` of the method, and the others with numpydoc sections: the names and the
defaults come from the signature of ``__init__``, the texts from the tables below.

An entry is its type on the first line, the description on the others. A class (or a mixin)
changes or adds entries for itself and its subclasses by the attributes ``_doc_parameters`` and
``_doc_attributes``, dictionaries from name to entry; in ``_doc_attributes`` None removes an entry.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import Any, TypeVar

_T = TypeVar("_T", bound=type)


PARAMETERS = {
    "model": """\
        LocalModel or None
        What every client trains, an object of :mod:`skcfl.models`. It decides whether the
        estimator is a classifier, a regressor or unsupervised. Its own parameters can be set
        and searched as ``model__<name>`` once an object is given. None is ``LinearModel()``, least
        squares of standardised features with a small L2 penalty.""",
    "loss": """\
        str
        Loss of a linear model.""",
    "alpha": """\
        "auto" or float
        Strength of the local L2 penalty: ``alpha / 2`` times the squared norm of the
        coefficients (of standardised features with ``standardize=True``) is added to each
        client's mean loss; the intercept is free. As the loss is a mean,
        ``Ridge(alpha=alpha * n_samples)`` is the same model. "auto" is a standard normal prior
        once per model: the number of models that are fitted over the total weight of the rows; one
        model for all is then scikit-learn's ``LogisticRegression(C=1)`` on the pooled rows. For
        "squared_error" and "huber" it is multiplied by the ratio of the residual variance to the
        variance of y, both of one model for all, since the coefficients have the units of y; for
        "gamma" and "tweedie" by the dispersion, and for "quantile" by the ratio of the mean loss
        to the variance of y. Of networks "auto" is .0001.""",
    "standardize": """\
        bool
        Whether linear models are trained on features of mean 0 and variance 1 over the rows of
        all clients, of which the clients send counts, sums and sums of squares. The penalty,
        the distances between models and the results then do not depend on the units of the
        features. ``coef_`` and all other fitted models are in the user's units nevertheless.
        Features of models without an intercept are not centred; sparse features neither, and
        where they outnumber the rows their scale is the root mean square of the values that are
        not zero. False trains on the features as they are, as the papers do. Networks take the
        features as they are.""",
    "class_weight": """\
        dict, "balanced" or None
        Factors of the weights of each class's rows, as in scikit-learn: a dict from class to
        number (1 for classes that it leaves out), or "balanced", which gives all classes the
        same total weight over the rows of all clients. None is 1 for all.""",
    "fit_intercept": """\
        bool
        Whether the models have an intercept. Set it to False for centred data.""",
    "hidden_layer_sizes": """\
        int or sequence of int
        Units of each hidden layer of a feed-forward network, which every client trains then
        instead of a linear model (see :class:`skcfl.models.MLP`). Empty for a linear model. Scale
        the features, and the target of a regression, to about unit size.""",
    "activation": """\
        {"relu", "tanh", "logistic", "identity"}
        Activation of the hidden layers; nothing without hidden layers.""",
    "n_clusters": """\
        int or "auto"
        Number of clusters to look for. Clusters that end without a client are dropped, so
        ``n_clusters_`` may be smaller. More clusters than clients is an error. "auto" tries 1, 2,
        ... on three quarters of every client's rows, four times over, for as long as the loss on
        the others falls by more than its standard error and 1 %; then a model for each client,
        as ``LocalModels`` fits it. Where that is better the clients are a continuum, and larger
        numbers are tried. The winner is fitted to all rows; ``search_`` and ``history_`` have
        what was tried. ``GridSearchCV`` searches the number by any other score.""",
    "max_iter": """\
        "auto" or int
        Largest number of communication rounds. "auto" is 300 for linear models, of which some 30
        are needed where the models are polished, and 50 for networks. A ``ConvergenceWarning``
        says so when it was not enough: of networks with "auto", which is how long they train, when
        clients still changed their clusters; with a number, when models still moved.""",
    "tol": """\
        float
        The fit stops when no client changed its cluster and no cluster model moved by more than
        ``tol`` of its norm in a round. 0 runs all ``max_iter`` rounds.""",
    "training": """\
        Training or None
        How clients train in a round, and how the server weighs what they send, an object of
        :class:`Training`, whose options are set and searched as ``training__<name>``; None is
        ``Training()``.""",
    "batch_size": """\
        int or None
        Rows a client draws for a step. None uses all of them.""",
    "participation": """\
        float
        Fraction of the clients that take part in a round, drawn anew each time, in (0, 1].""",
    "record": """\
        Record or None
        What a study keeps of the fit, an object of :class:`Record`; None is ``Record()``.""",
    "n_init": """\
        "auto" or int
        Number of starts; the one whose final models have the least total loss is kept. "auto"
        is 3 with ``init="loss++"`` and 10 with ``init="random"`` for linear models, 1 for
        networks.""",
    "init": """\
        {"loss++", "random", "same"} or array of shape (n_clusters, n_params)
        Start of the cluster models. With "loss++" every client trains a few steps from one
        common start, then the cluster models are drawn among the clients' models, far from each
        other in loss as k-means++ does in distance; it finds well-separated clusters from a
        single start where random starts often miss them. "random" draws the parameters, as the
        papers do; "same" draws one model for all clusters, and deals the clients to them in the
        first round. An array gives the models.""",
    "shared_layers": """\
        int, str, list of str or None
        Layers of the local model that all clusters have in common: the first so many, or by
        name (``model_.layer_slices()``). They are averaged over all participants, the others by
        cluster, and sent once instead of once per cluster. A linear model is one layer.""",
    "embedding": """\
        {"log", "sqrt", "raw", "centered"}
        What of the loss vectors is clustered. "log" is the logarithm of the losses minus each
        client's mean, so that only the ratios of a client's losses count: neither a model that
        diverged nor clients whose losses are larger than others', by their noise or the luck of
        their rows, disturb it. "sqrt" is the paper's theory, "raw" its algorithm, "centered" the
        raw losses minus each client's mean.""",
    "clusterer": """\
        clusterer or None
        A clusterer of scikit-learn to use in place of k-means. It is cloned every round, and its
        ``n_clusters`` (or ``n_components``) set to the number of models. Clients it calls noise,
        and those of more groups than there are models, take the model of least loss.""",
    "aggregation": """\
        {"mean", "median", "trimmed_mean", "geometric_median", "krum", "centered_clipping"} or \
object
        What the server makes of the messages of a cluster's clients: a name, or an operator of
        :mod:`skcfl.rounds.aggregation` with its parameters, such as ``TrimmedMean(trim=0.1)``.
        The mean is right where all are honest, and carried anywhere by a single false client. The
        geometric median tolerates false clients of up to half of a cluster's weight and costs
        hardly anything without them: the one to begin with. "median" and "trimmed_mean" work on
        each coordinate by itself, "krum" takes the message of one client, "centered_clipping"
        shortens what is far from the middle. With all of these, polishing, and the last rounds of
        linear models with per-client ones beside a shared one, leave out clients whose messages
        are far from their cluster's (``suspicion_``), and with ``standardize=True`` features are
        scaled by medians over the clients. An object of yours has a method
        ``aggregate(messages, weights)`` that returns one vector (p,) of some (m, p).""",
    "empty_cluster": """\
        {"reseed", "keep"}
        What happens to a cluster no client chose in a round. "reseed" restarts it from the
        clients that fit worst; "keep" leaves its model as it is, as the paper does.""",
    "group_col": """\
        str, int or None
        Column of X that holds the client ids: a name if X is a DataFrame, or a position, negative
        from the end. The column is not a feature. Use it instead of ``groups=`` in tools that
        cannot pass groups to ``predict``: ``GridSearchCV`` with a scorer's name,
        ``cross_val_predict``, ``CalibratedClassifierCV`` and others.""",
    "unseen": """\
        {"error", "average", "largest"}
        What to do in prediction about ids not seen in fit. "error" refuses them; "average" uses
        the mean of the clients' models, weighted by their rows; "largest" uses the model of the
        cluster with most clients, and is refused where every cluster has one. If there are
        labelled rows of the new clients, :meth:`adapt` does better.""",
    "n_jobs": """\
        int or None
        Number of threads that work on blocks of clients, and in a search on folds, as in
        scikit-learn; of a federation elsewhere all folds are asked at the same time. It
        changes the time only, never the result.""",
    "random_state": """\
        int, RandomState instance or None
        Seed of everything that is drawn. An int makes the fit reproducible.""",
    "verbose": """\
        int
        0 prints nothing, 1 one line per stage of the fit, with k of n and an estimate of the
        time that is left, 2 the rounds or iterations too.""",
}

ATTRIBUTES = {
    "groups_": """\
        ndarray of shape (n_clients,)
        The client ids, sorted. ``[0]`` after a fit without ids.""",
    "labels_": """\
        ndarray of shape (n_clients,)
        Cluster of each client, in the order of ``groups_``. Clusters are numbered from 0 by
        decreasing number of clients, equal ones by their first client. ``sample_labels``
        gives one label per row.""",
    "n_clusters_": """\
        int
        Number of clusters that have a client.""",
    "cluster_sizes_": """\
        ndarray of shape (n_clusters_,)
        Number of clients of each cluster.""",
    "coef_": """\
        ndarray of shape (n_clients, n_features) or (n_clients, n_classes, n_features)
        Coefficients of each client's model, in the order of ``groups_`` (linear models only). The
        group column is not a feature and has no coefficient.""",
    "intercept_": """\
        ndarray of shape (n_clients,) or (n_clients, n_classes)
        Intercept of each client's model (linear models only).""",
    "alpha_": """\
        float
        The local penalty of the fit, which ``alpha="auto"`` chooses.""",
    "cluster_coef_": """\
        ndarray of shape (n_clusters_, n_features) or (n_clusters_, n_classes, n_features)
        Coefficients of each cluster's model (linear models only).""",
    "cluster_intercept_": """\
        ndarray of shape (n_clusters_,) or (n_clusters_, n_classes)
        Intercept of each cluster's model (linear models only).""",
    "params_": """\
        ndarray of shape (n_clients, n_params)
        Parameter vector of each client's model.""",
    "cluster_params_": """\
        ndarray of shape (n_clusters_, n_params)
        Parameter vector of each cluster's model.""",
    "n_iter_": """\
        int
        Number of rounds or iterations that were run.""",
    "history_": """\
        dict of str to ndarray
        What happened round by round, one array entry per round: such as the objective, the number
        of clusters, "floats_up" and "floats_down" (numbers sent to and by the server), "calls",
        "seconds", "bytes_up" and "bytes_down" (what has travelled, see ``wire_bytes_``).""",
    "floats_up_": """\
        int
        Numbers sent by the clients to the server in the whole fit: starts, all restarts, rounds
        and polishing. ``history_`` has those of the start that was kept, by round.""",
    "floats_down_": """\
        int
        Numbers sent by the server to the clients in the whole fit.""",
    "missing_clients_": """\
        ndarray of shape (n_missing,)
        Ids of the clients that no longer answered at the end of the fit, or never answered one
        kind of call, see :class:`skcfl.federation.Faults`. While some are missing ``dual_gap_``
        is infinite and nothing is proved.""",
    "rejected_clients_": """\
        ndarray of shape (n_rejected,)
        Ids of the clients that sent numbers that are not finite, and take no part.
        Like missing ones they leave nothing proved.""",
    "calls_": """\
        int
        Exchanges between the server and the clients in the whole fit, one after the other,
        searches, starts and proofs included, however many clients took part in each. The folds of
        a search do not wait for each other: what is asked about all of them at the same time is
        one exchange. What :meth:`report` and :meth:`update` need to know is asked after the fit
        and not counted, here and in all other counts: a few exchanges of sums.""",
    "client_calls_": """\
        int
        Clients that were asked, summed over the exchanges.""",
    "wire_bytes_": """\
        tuple of int
        Bytes ``(up, down)`` of all messages that travelled in the fit: replies of other processes,
        and requests to them. Zero in one process.""",
    "coef_names_": """\
        ndarray of shape (n_features,)
        Names of the features that ``coef_`` belongs to: those of X without the group column, or
        "x0", "x1", ... where X has no names.""",
    "objective_": """\
        float
        Value of the objective at the end.""",
    "classes_": """\
        ndarray of shape (n_classes,)
        Class labels, sorted (classifiers only). The columns of ``predict_proba`` are in this
        order for every client, whatever classes it has.""",
    "n_features_in_": """\
        int
        Number of columns of X in fit, the group column included.""",
    "feature_names_in_": """\
        ndarray of shape (n_features_in_,)
        Names of the columns of X in fit, if all are strings.""",
    "model_": """\
        LocalModel
        The local model, bound to the shape of the data.""",
}

# What a method is for, when to take it and when not: {use} in the docstrings of its classes.
USES = {
    "CFL": """\
        For a hierarchy of clusters of unknown number, among clients with many rows each. Not for
        few rows or few rounds, where it splits clients that do not differ, or none that do:
        :class:`IFCA` with ``n_clusters="auto"`` judges the number by rows held out.""",
    "CLoVE": """\
        For crisp clusters of clients, with linear models or networks, where good starts for the
        cluster models are hard to find. Not for clients that differ by degrees, which
        :class:`PartialPooling` predicts better, and not for a proof of the clusters
        (:class:`ConvexClusteredFL`).""",
    "ConvexClusteredFL": """\
        For clusters of clients whose number is unknown, where a proof of the clusters is wanted;
        with the squared penalty also for clients that differ by degrees. Not for networks
        (:class:`GTV`, :class:`FPFC`, :class:`IFCA`), and not for thousands of clients on the
        complete graph, whose pairs would not fit in memory (``graph="knn"``).""",
    "ConvexClustering": """\
        For clusters of points whose number is unknown, where a proof of the clusters is wanted.
        Not where the number is known: k-means is faster.""",
    "Ditto": """\
        For clients that differ by degrees from one shared model, with linear models or networks.
        Not for crisp clusters, where cluster models (:class:`IFCA`) are better; with linear models
        :class:`PartialPooling` estimates how far each coefficient differs.""",
    "FedALA": """\
        For networks of clients that differ by degrees, where nobody wants to choose how strongly
        they are tied. Not for crisp clusters, where cluster models (:class:`IFCA`) are better.""",
    "FedAvg": """\
        For clients that do not differ, or have too few rows to show it, and as the baseline that
        every other method has to beat. Not where clients differ: see :class:`PartialPooling` and
        :class:`IFCA`.""",
    "FedEM": """\
        For clients whose rows are of several kinds, so that no single cluster model suits a
        client. Not where each client belongs to one cluster: :class:`IFCA` finds it with a
        fraction of the messages.""",
    "FedPAC": """\
        For classifiers by networks whose representation of the classes is common to the clients,
        where the labels' distributions differ. Not for crisp clusters of clients that label alike
        rows differently (:class:`IFCA`).""",
    "FedProto": """\
        For classifiers by networks where little may be sent: clients exchange mean
        representations of the classes and no parameters. Not where parameters may be averaged,
        which is more accurate (:class:`FedRep`, :class:`FedPACClassifier`).""",
    "FedRep": """\
        For networks of clients that share a representation and differ in the last layer, as where
        labels have other meanings. Not where the features mean other things from client to
        client. With linear models each client has an intercept, and nothing else, of its own.""",
    "FeSEM": """\
        For comparison with clusters by loss (:class:`IFCA`): here clients are clustered by the
        distance of their parameters. Not for networks without a common start, whose parameters
        cannot be compared.""",
    "FlexCFL": """\
        For crisp clusters that are to be found before the training, from one update per client.
        Not where first updates do not show the differences, for want of rows: :class:`IFCA`
        revises its clusters in every round.""",
    "FPFC": """\
        For clusters of clients whose number is unknown, with linear models or networks, where
        clusters are well separated and their models should not be biased towards each other. Not
        where the clusters are to be proved: the problem is not convex
        (:class:`ConvexClusteredFL`).""",
    "GTV": """\
        For clients on a graph that says which of them are alike, and for clients without rows,
        which get a model from their neighbours. Not where no such graph is known:
        :class:`ConvexClusteredFL` compares all pairs.""",
    "IFCA": """\
        For crisp clusters of clients, with linear models or networks; clients choose their cluster
        by their own loss. Not for clients that differ by degrees, which :class:`PartialPooling`
        predicts better, and not for a proof of the clusters (:class:`ConvexClusteredFL`).""",
    "LocalModels": """\
        For clients with many rows each, and as the baseline that every method has to beat. Not for
        clients with few rows, which need those of others: see :class:`PartialPooling` and
        :class:`IFCA`.""",
    "OneShot": """\
        For crisp clusters where rounds are expensive: clusters are found in one exchange. Not for
        clients with too few rows to fit a local model (:class:`IFCA`).""",
    "OracleClusters": """\
        For clusters that are known beforehand, and as the bound of what a clustered method can
        reach. Not where the clusters are to be found.""",
    "PACFL": """\
        For clusters that differ in their features, such as rotated images, found before any
        training. Not for clusters with the same features and other targets, such as swapped
        labels, which it cannot see (:class:`IFCA`).""",
    "PartialPooling": """\
        The method to begin with on tables: for clients that differ by degrees, are in clusters or
        do not differ, and it estimates which. Not for networks, nor for losses that are no
        likelihood, such as Huber's (:class:`IFCA`); :class:`ConvexClusteredFL` has proofs.""",
    "PerFedAvg": """\
        For new clients with few rows, which are to take one gradient step from a shared model. Not
        where clients are in crisp clusters, for which a step is too little (:class:`IFCA`).""",
    "PFedMe": """\
        For clients that differ by degrees from one shared model, by the published method.
        :class:`Ditto` has the same aim with the shared model of federated averaging. Not for crisp
        clusters, where cluster models (:class:`IFCA`) are better.""",
    "RobustClusteredFL": """\
        For crisp clusters where some clients may send false (Byzantine) models. Not where all
        clients are honest: :class:`OneShot` is the same without what honest clients do not
        need.""",
}


def document(cls: _T) -> _T:
    """Fill the placeholders in the docstring of an estimator class.

    Parameters
    ----------
    cls : type
        A class whose docstring may hold the lines ``{use}``, ``{parameters}``, ``{attributes}``,
        ``{references}``.

    Returns
    -------
    cls : type
        The same class.

    Raises
    ------
    TypeError
        If a parameter of ``__init__`` has no description.

    Examples
    --------
    >>> import inspect
    >>> from skcfl.base.docs import document
    >>> @document
    ... class Fit:
    ...     '''Fits.
    ...
    ...     {parameters}
    ...     '''
    ...
    ...     def __init__(self, *, verbose=0):
    ...         self.verbose = verbose
    >>> print(inspect.getdoc(Fit))
    Fits.
    <BLANKLINE>
    Parameters
    ----------
    verbose : int, default=0
        0 prints nothing, 1 one line per stage of the fit, with k of n and an estimate of the
        time that is left, 2 the rounds or iterations too.
    """
    sections = {
        "{parameters}": _section("Parameters", _parameter_entries(cls)),
        "{attributes}": _section("Attributes", _attribute_entries(cls)),
    }
    if cls.__doc__ is not None:  # python -OO has none
        lines = inspect.cleandoc(cls.__doc__).splitlines()
        if "{use}" in lines:
            sections["{use}"] = _use(cls.__name__)
        if "{references}" in lines:
            references = inspect.cleandoc(getattr(cls, "_doc_references", ""))
            sections["{references}"] = _section("References", [references])
        cls.__doc__ = "\n".join(sections.get(line.strip(), line) for line in lines) + "\n"
    return cls


def _use(name: str) -> str:
    """What a class is for."""
    return textwrap.dedent(USES[name.removesuffix("Classifier").removesuffix("Regressor")])


def _parameter_entries(cls: Any) -> list[str]:
    table = _merged(cls, "_doc_parameters", PARAMETERS)
    entries = []
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if table.get(name) is None:
            raise TypeError(
                f"Parameter {name!r} of {cls.__name__} has no description. Add it to "
                f"skcfl.base.docs.PARAMETERS or to {cls.__name__}._doc_parameters."
            )
        text = table[name] + _used(cls, name)
        default = parameter.default
        suffix = "" if default is parameter.empty else f", default={_spell(default)}"
        entries.append(_entry(name, text, suffix))
    return entries


def _used(cls: Any, name: str) -> str:
    """Which options of an object a class uses, if not all."""
    used = getattr(cls, "_option_names", {}).get(name)
    if used is None:
        return ""
    text = f"Of its options {', '.join(f'`{one}`' for one in used)} are used."
    return "\n" + textwrap.indent(textwrap.fill(text, 90), " " * 8)


def _attribute_entries(cls: type) -> list[str]:
    table = _merged(cls, "_doc_attributes", ATTRIBUTES)
    return [_entry(name, text) for name, text in table.items() if text is not None]


def _merged(cls: type, attribute: str, table: dict[str, Any]) -> dict[str, Any]:
    table = dict(table)
    for base in reversed(cls.__mro__):  # the nearest class has the last word
        table.update(vars(base).get(attribute, {}))
    return table


def _entry(name: str, text: str, suffix: str = "") -> str:
    kind, _, body = textwrap.dedent(text).strip().partition("\n")
    return f"{name} : {kind}{suffix}\n{textwrap.indent(textwrap.dedent(body), '    ')}"


def _section(title: str, entries: list[str]) -> str:
    return "\n".join([title, "-" * len(title), "\n\n".join(entries)])


def _spell(default: Any) -> str:
    return f'"{default}"' if isinstance(default, str) else f"{default!r}"
