"""The directions that the rows of a client span: a model of few rows is determined along them."""

import numpy as np

from ..clients.blocks import Block


class RowSpace:
    """Orthonormal directions of the features that the rows of each client of a dense block span.

    Attributes
    ----------
    directions : ndarray of shape (c, n_features, n)
        The directions, as many as a client has rows.
    block : Block
        The same rows along the directions, and their other columns.
    """

    def __init__(self, directions, block):
        self.directions, self.block = directions, block

    @classmethod
    def of(cls, block, n_features):
        """Directions of a block with more features than rows a client."""
        features, others = np.split(block.X, [n_features], axis=2)
        Q, R = np.linalg.qr(features.transpose(0, 2, 1))
        rows = np.concatenate([R.transpose(0, 2, 1), others], axis=2)
        return cls(Q, Block(rows, block.y, block.weights, block.clients, block.lengths))

    def take(self, index):
        """The same of some of the clients."""
        return RowSpace(self.directions[index], self.block.take(index))

    def inside(self, W):
        """Coordinates of models: (c, C, n_columns) -> (c, C, n + other columns)."""
        coef, others = np.split(W, [self.directions.shape[1]], axis=2)
        return np.concatenate([np.matmul(coef, self.directions), others], axis=2)

    def put(self, W, inner):
        """Give the models `W` the coordinates `inner` (in place)."""
        _, d, n = self.directions.shape
        W[:, :, d:] = inner[:, :, n:]
        for _ in range(2):  # what is left of large coordinates is rounding
            change = (inner - self.inside(W))[:, :, :n]
            W[:, :, :d] += np.matmul(change, self.directions.transpose(0, 2, 1))
