"""Modules of PyTorch for tests, where pickle finds them, and networks of this package as such."""

import numpy as np
import torch
from torch import nn

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}


class Net(nn.Module):
    """Two layers, with what training may draw and keep."""

    def __init__(self, n_features=4, n_outputs=2, hidden=8, dropout=0.0, norm=False):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(n_features, hidden),
            nn.BatchNorm1d(hidden) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.fc = nn.Linear(hidden, n_outputs)

    def forward(self, x):
        return self.fc(self.body(x))


class ConvNet(nn.Module):
    """Small convolutional network for images of 8 x 8."""

    def __init__(self, n_outputs=2, channels=3):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, padding=1)
        self.fc = nn.Linear(channels * 16, n_outputs)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc(x.flatten(1))


class WordNet(nn.Module):
    """Mean of the embeddings of tokens, and a linear layer."""

    def __init__(self, n_words=20, size=4, n_outputs=2):
        super().__init__()
        self.words = nn.Embedding(n_words, size)
        self.fc = nn.Linear(size, n_outputs)

    def forward(self, x):
        return self.fc(self.words(x).mean(1))


class Wrong(nn.Linear):
    """A linear layer that returns something else."""

    def __init__(self, how, n_features=10):
        super().__init__(n_features, 2)
        self.how = how
        if how == "complex":
            self.turn = nn.Parameter(torch.ones(1, dtype=torch.complex64))

    def forward(self, x):
        z = super().forward(x)
        returned = {
            "scalar": z.sum,
            "tuple": lambda: (z, z),
            "int": lambda: (z > 0).long(),
            "tuple in training": lambda: (z, z) if self.training else z,
            "shape in training": lambda: z[:, :1] if self.training else z,
            "complex": lambda: z * self.turn.real,
            "drawn": lambda: nn.functional.dropout(z),
            "beside others": lambda: z - z.mean(0),
            "in time": lambda: z + z.cumsum(0),
            "log": lambda: torch.log(z.abs() - z.abs()) + 0 * z if x.any() else z,
        }
        return returned[self.how]()


def log_of_target(output, target):
    """A loss that some targets have none of."""
    return (output[:, 0] - torch.log(target)) ** 2


def smooth_l1_rows(output, target):
    """A loss by row of one output."""
    return nn.functional.smooth_l1_loss(output[:, 0], target, reduction="none")


def cross_entropy_rows(output, target):
    """Log loss by row."""
    return nn.functional.cross_entropy(output, target, reduction="none")


def squares_rows(output, target):
    """Squared error of a reconstruction by row."""
    return ((output - target) ** 2).flatten(1).mean(1)


def mean_loss(output, target):
    """Not a loss by row."""
    return nn.functional.mse_loss(output[:, 0], target)


def as_module(bound, params):
    """A module that is exactly a bound MLP with these parameters."""
    layers = []
    for W, b in bound.weights(params).values():
        linear = nn.Linear(*W.shape)
        linear.weight.data = torch.from_numpy(np.ascontiguousarray(W.T))
        linear.bias.data = torch.from_numpy(b.copy())
        layers += [linear, ACTIVATIONS[bound.activation]()]
    return nn.Sequential(*layers[:-1])


def as_vector(bound, params):
    """Parameters of a bound MLP in the order of that module."""
    parts = bound.weights(params).values()
    return np.concatenate([np.concatenate([W.T.ravel(), b]) for W, b in parts])
