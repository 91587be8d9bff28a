"""Fitted models of plain scikit-learn, made of parameters that came from elsewhere."""

from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.neural_network._base import ACTIVATIONS
from sklearn.preprocessing import LabelBinarizer


def plain_linear(loss, coef, intercept, classes, fit_intercept):
    """Linear model of scikit-learn.

    Parameters
    ----------
    loss : Loss
        The loss, which knows the estimator.
    coef : ndarray of shape (C, n_features)
        Coefficients of the outputs.
    intercept : ndarray of shape (C,)
        Intercepts.
    classes : ndarray or None
        The classes of a classifier.
    fit_intercept : bool
        True if the model has an intercept.

    Returns
    -------
    estimator : estimator
        Fitted, but for the names of its features.

    Raises
    ------
    ValueError
        If scikit-learn has no such estimator.
    """
    estimator = loss.plain_linear(fit_intercept)
    if estimator is None:
        raise ValueError(
            f"scikit-learn has no linear model with loss={loss!r}, so that there is no plain "
            "model of this client; its coefficients are coef_[i]."
        )
    coef, intercept = coef.copy(), intercept.copy()
    if classes is None:
        coef, intercept = coef[0], float(intercept[0])
    else:
        estimator.classes_ = classes.copy()
    estimator.coef_, estimator.intercept_ = coef, intercept
    return estimator


def plain_network(weights, activation, loss, output, classes):
    """Feed-forward network of scikit-learn.

    Parameters
    ----------
    weights : list of tuple
        ``(W, b)`` of each layer.
    activation : str
        Activation of the hidden layers.
    loss : str
        Named in the message if there is no such network.
    output : {"identity", "logistic", "softmax", "exp"} or None
        Activation of the last layer, None if there is no such network.
    classes : ndarray or None
        The classes of a classifier.

    Returns
    -------
    estimator : MLPClassifier or MLPRegressor
        Fitted, but for the names of its features.

    Raises
    ------
    ValueError
        If the installed scikit-learn has no network of this kind.
    """
    if output not in ACTIVATIONS:
        raise ValueError(
            f"scikit-learn has no network with loss={loss!r}, so that there is no plain model of "
            "this client; its weights are model_.weights(params_[i])."
        )
    hidden = tuple(W.shape[1] for W, _ in weights[:-1])
    make = MLPRegressor if classes is None else MLPClassifier
    estimator = make(hidden, activation=activation)
    estimator.coefs_ = [W.copy() for W, _ in weights]
    estimator.intercepts_ = [b.copy() for _, b in weights]
    estimator.n_layers_ = len(weights) + 1
    estimator.n_outputs_ = weights[-1][0].shape[1]
    estimator.out_activation_ = output
    estimator.n_iter_ = estimator.t_ = 0
    if classes is not None:
        estimator.classes_ = classes.copy()
        estimator._label_binarizer = LabelBinarizer().fit(classes)
    return estimator
