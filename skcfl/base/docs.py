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
        Model that every client trains, from :mod:`skcfl.models`. It decides whether the estimator
        is a classifier, a regressor or unsupervised. None is ``LinearModel()``, least squares.
        Set its parameters as ``model__<name>``.""",
    "loss": """\
        str
        Loss of a linear model.""",
    "alpha": """\
        "auto" or float
        Strength of the L2 penalty: ``alpha / 2`` times the squared norm of the coefficients is
        added to each client's mean loss, as in ``Ridge(alpha=alpha * n_samples)``. The intercept
        is free. "auto" is a standard normal prior on standardised coefficients, once per model
        (see the user guide); for networks it is .0001.""",
    "standardize": """\
        bool
        If True, linear models are trained on features of mean 0 and variance 1 over the rows of
        all clients, so that the penalty and the clusters do not depend on units. Fitted models
        are in the user's units. Sparse features are scaled but not centred. Not for
        networks.""",
    "class_weight": """\
        dict, "balanced" or None
        Weights of the classes as in scikit-learn. "balanced" gives all classes the same total
        weight over the rows of all clients. None is 1 for all.""",
    "fit_intercept": """\
        bool
        If True, the models have an intercept.""",
    "hidden_layer_sizes": """\
        int or sequence of int
        Units of each hidden layer of a feed-forward network (:class:`skcfl.models.MLP`). Empty
        for a linear model. Scale features and regression targets of networks to about unit
        size.""",
    "activation": """\
        {"relu", "tanh", "logistic", "identity"}
        Activation of the hidden layers.""",
    "n_clusters": """\
        int or "auto"
        Number of clusters to look for; empty clusters are dropped. "auto" raises the number as
        long as the loss on held-out rows of the clients falls by more than its standard error and
        1 %, and compares with one model per client (see ``search_``). Give a number when it is
        known, or search it with ``GridSearchCV``.""",
    "max_iter": """\
        "auto" or int
        Largest number of communication rounds. "auto" is 300 for linear models and 50 for
        networks. A ``ConvergenceWarning`` is issued when clients or models still moved at the
        end.""",
    "tol": """\
        float
        The fit stops when no client changed its cluster and no cluster model moved by more than
        ``tol`` of its norm in a round. 0 runs all ``max_iter`` rounds.""",
    "training": """\
        Training or None
        How clients train in a round and how the server weighs their messages; None is
        :class:`Training` with its defaults. Set its options as ``training__<name>``.""",
    "batch_size": """\
        int or None
        Rows a client draws for a step. None uses all of them.""",
    "participation": """\
        float
        Fraction of the clients that take part in a round, drawn anew each time, in (0, 1].""",
    "record": """\
        Record or None
        What a study keeps of the fit; None is :class:`Record` with its defaults.""",
    "n_init": """\
        "auto" or int
        Number of starts; the start with the least final loss is kept. "auto" is 3 with
        ``init="loss++"`` and 10 with ``init="random"`` for linear models, and 1 for networks.""",
    "init": """\
        {"loss++", "random", "same"} or array of shape (n_clusters, n_params)
        Start of the cluster models. "loss++" draws them among the clients' models after a few
        local steps, far from each other in loss, as k-means++ does in distance. "random" draws
        parameters, as in the papers. "same" draws one model and deals the clients to the clusters
        in the first round. An array gives the models.""",
    "shared_layers": """\
        int, str, list of str or None
        Layers that all clusters share: the first so many, or names of
        ``model_.layer_slices()``. Shared layers are averaged over all clients and sent once. A
        linear model is one layer.""",
    "embedding": """\
        {"log", "sqrt", "raw", "centered"}
        Transform of the loss vectors that are clustered. "log" compares the ratios of a client's
        losses and tolerates diverged models and clients with large losses. "raw" is the paper's
        algorithm, "sqrt" its theory; "centered" subtracts each client's mean.""",
    "clusterer": """\
        clusterer or None
        A scikit-learn clusterer in place of k-means, cloned in every round with its
        ``n_clusters`` (or ``n_components``) set to the number of models. Noise points take the
        model of least loss.""",
    "aggregation": """\
        {"mean", "median", "trimmed_mean", "geometric_median", "krum", "centered_clipping"} or \
object
        How the server combines the messages of a cluster's clients. The mean is right if all
        clients are honest; "geometric_median" is the first choice if some may be false, and costs
        little accuracy otherwise. An operator of :mod:`skcfl.rounds.aggregation` has parameters,
        such as ``TrimmedMean(trim=0.1)``; any object with a method
        ``aggregate(messages, weights)`` works. All but the mean set outlying clients aside, see
        ``suspicion_`` and the page on false clients.""",
    "empty_cluster": """\
        {"reseed", "keep"}
        "reseed" restarts a cluster without clients from the clients that fit worst; "keep"
        leaves its model as it is, as in the paper.""",
    "group_col": """\
        str, int or None
        Column of X that holds the client ids: a column name, or a position. The column is not a
        feature. Use it in tools that cannot pass ``groups`` to ``predict``, such as
        ``cross_val_predict`` and ``CalibratedClassifierCV``.""",
    "unseen": """\
        {"error", "average", "largest"}
        Prediction for ids not seen in fit. "error" refuses them; "average" uses the mean of the
        clients' models, weighted by rows; "largest" uses the model of the largest cluster. With
        labelled rows of new clients use :meth:`adapt`.""",
    "n_jobs": """\
        int or None
        Number of threads over blocks of clients and folds, as in scikit-learn. It does not change
        the result.""",
    "random_state": """\
        int, RandomState instance or None
        Seed of all random draws. An int makes the fit reproducible.""",
    "verbose": """\
        int
        0 prints nothing, 1 one line per stage with the estimated time left, 2 also rounds or
        iterations.""",
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
        Coefficients of each client's model, in the order of ``groups_`` (linear models only).""",
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
        One entry per round: such as "objective", "n_clusters", "floats_up" and "floats_down"
        (numbers sent to and by the server), "calls", "seconds", "bytes_up" and "bytes_down".""",
    "floats_up_": """\
        int
        Numbers sent by the clients to the server in the whole fit, restarts and polishing
        included.""",
    "floats_down_": """\
        int
        Numbers sent by the server to the clients in the whole fit.""",
    "missing_clients_": """\
        ndarray of shape (n_missing,)
        Ids of the clients that did not answer at the end of the fit, or never answered one kind
        of call (:class:`skcfl.federation.Faults`).""",
    "absences_": """\
        list of dict
        When a client did not answer: its id ("client"), the calls and the seconds of the fit from
        its first silence to its next answer, None if there was none.""",
    "rejected_clients_": """\
        ndarray of shape (n_rejected,)
        Ids of the clients that sent non-finite numbers; they take no part.""",
    "calls_": """\
        int
        Exchanges between server and clients in the whole fit; requests that do not wait for each
        other are one exchange.""",
    "client_calls_": """\
        int
        Clients that were asked, summed over the exchanges.""",
    "wire_bytes_": """\
        tuple of int
        Bytes ``(up, down)`` of all messages between processes in the fit; zero in one process.""",
    "coef_names_": """\
        ndarray of shape (n_features,)
        Names of the features of ``coef_``: those of X, or "x0", "x1", ...""",
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

# Use of a method, and when not to take it: {use} in the docstrings of its classes.
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
        For an unknown number of clusters of clients, if a proof of the clusters is wanted;
        with the squared penalty also for clients that differ by degrees. Not for networks
        (:class:`GTV`, :class:`FPFC`, :class:`IFCA`), and not for thousands of clients on the
        complete graph, with more pairs than fit in memory (``graph="knn"``).""",
    "ConvexClustering": """\
        For an unknown number of clusters of points, if a proof of the clusters is wanted.
        Not where the number is known: k-means is faster.""",
    "Ditto": """\
        For clients that differ by degrees from one shared model, with linear models or networks.
        Not for crisp clusters, where cluster models (:class:`IFCA`) are better; with linear models
        :class:`PartialPooling` estimates how far each coefficient differs.""",
    "FedALA": """\
        For networks of clients that differ by degrees, where the strength of the tie is to be
        learned. Not for crisp clusters, where cluster models (:class:`IFCA`) are better.""",
    "FedAvg": """\
        For clients that do not differ, or have too few rows to show it, and as the baseline that
        every other method has to beat. Not where clients differ: see :class:`PartialPooling` and
        :class:`IFCA`.""",
    "FedEM": """\
        For clients with rows of several kinds, so that no single cluster model suits a
        client. Not where each client belongs to one cluster: :class:`IFCA` finds it with a
        fraction of the messages.""",
    "FedPAC": """\
        For classifiers by networks, if the clients have the representation of the classes in
        common, where the labels' distributions differ. Not for crisp clusters of clients that
        label alike rows differently (:class:`IFCA`).""",
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
        distance of their parameters. Not for networks without a common start: their parameters
        cannot be compared.""",
    "FlexCFL": """\
        For crisp clusters that are to be found before the training, from one update per client.
        Not where first updates do not show the differences, for want of rows: :class:`IFCA`
        revises its clusters in every round.""",
    "FPFC": """\
        For an unknown number of clusters of clients, with linear models or networks, if
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
        A class with the lines ``{use}``, ``{parameters}``, ``{attributes}``, ``{references}`` in
        its docstring.

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
        0 prints nothing, 1 one line per stage with the estimated time left, 2 also rounds or
        iterations.
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
    """Text about the use of a class."""
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
    return "\n".join([title, "-" * len(title), "\n".join(entries)])


def _spell(default: Any) -> str:
    return f'"{default}"' if isinstance(default, str) else f"{default!r}"
