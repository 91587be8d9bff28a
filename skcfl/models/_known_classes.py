"""Fitted classifiers that know some of the classes only."""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin


class KnownClasses(ClassifierMixin, BaseEstimator):
    """A fitted classifier that says what it knows of all classes.

    Parameters
    ----------
    estimator : classifier
        Fitted to codes of classes, maybe not to all of them.
    n_classes : int
        Number of all classes.
    """

    def __init__(self, estimator, n_classes):
        self.estimator = estimator
        self.n_classes = n_classes

    @property
    def classes_(self):
        """Codes of all classes."""
        return np.arange(self.n_classes)

    @property
    def n_features_in_(self):
        """Number of features of the classifier."""
        return self.estimator.n_features_in_

    def __sklearn_is_fitted__(self):
        return True

    def predict_proba(self, X):
        """Probabilities of all classes, 0 and 1 of a classifier that has none."""
        out = np.zeros((X.shape[0], self.n_classes))
        if hasattr(self.estimator, "predict_proba"):
            out[:, self.estimator.classes_.astype(np.intp)] = self.estimator.predict_proba(X)
        else:
            out[np.arange(len(out)), self.estimator.predict(X).astype(np.intp)] = 1.0
        return out

    def predict(self, X):
        """Codes of the likeliest classes."""
        return self.predict_proba(X).argmax(axis=1)
