"""Clusters of rows by their nearest centre: what clients do with centres that they are sent."""

import numpy as np
from scipy import sparse
from scipy.spatial.distance import cdist

from ..numerics.by_cluster import rows_by_label

# Entries of sparse rows that are made dense together, and of distances that are held.
BATCH = 2**20


class NearestCentre:
    """Centres with the clusters that they belong to, as parameters.

    Parameters
    ----------
    n_centres : int
        Centres of a model.
    n_features : int
        Numbers of a centre.
    dtype : dtype
        Type of the rows.
    """

    def __init__(self, n_centres, n_features, dtype):
        self.n_centres, self.n_features = n_centres, n_features
        self.dtype = self.rows_dtype = dtype

    def pack(self, centres, labels):
        """Parameters (m, n_params) of centres (m, h, d) and clusters (m, h), -1 where is none."""
        table = np.zeros((len(labels), self.n_centres, self.n_features + 1))
        table[:, :, -1] = -1
        h = labels.shape[1]
        table[:, :h, :-1], table[:, :h, -1] = centres, labels
        return table.reshape(len(table), -1)

    def decision(self, X, params, index):
        """Cluster of every row, (n_rows,), under the centres of the model at `index`."""
        table = params.reshape(-1, self.n_centres, self.n_features + 1)
        out = np.zeros(X.shape[0], dtype=np.intp)
        for k, some in rows_by_label(index, max(BATCH // max(self.n_features, self.n_centres), 1)):
            model = table[k][table[k, :, -1] >= 0]
            rows = X[some].toarray() if sparse.issparse(X) else X[some]
            out[some] = model[cdist(rows, model[:, :-1], "sqeuclidean").argmin(axis=1), -1]
        return out

    def output(self, raw):
        """Clusters as they are."""
        return raw
