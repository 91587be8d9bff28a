"""The same words mean something else: sentences of topics, embedded by PyTorch.
=============================================================================

Eighteen shops have 150 short reviews each, as ids of words. A shop sells books, knives or films,
and nothing says which. Whether "long", "sharp", "quiet" and their like praise or blame depends on
what is sold; most words of a review are about anything at all. The local model embeds the words
and takes the mean, then one linear layer: a module of PyTorch that takes integers.

CLoVE and IFCA find the three kinds of shops by how the classes depend on the words, and one
network for all has nothing to go by. Prints the accuracy on reviews that were held out, the
adjusted Rand index (ARI) of the clusters, and what the clusters' networks think of some words::

    python examples/torch_topics.py
"""

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import nn

from skcfl import IFCA, CLoVE, FedAvg, LocalModels, Training
from skcfl.model_selection import ClientKFold
from skcfl.models import TorchModel

TOPICS = ("books", "knives", "films")
SHOPS, REVIEWS, LENGTH = 18, 150, 12
FILLERS, ROUNDS = 200, 30
WORDS = ("long", "sharp", "quiet", "heavy", "light", "dark", "simple", "hard")
N_WORDS = FILLERS + len(WORDS)


class Reviews(nn.Module):
    """Mean of the embedded words, dropout, a linear layer."""

    def __init__(self, n_words=N_WORDS, size=16, dropout=0.2):
        super().__init__()
        self.words = nn.Embedding(n_words, size)
        self.dropout = nn.Dropout(dropout)
        self.verdict = nn.Linear(size, 2)

    def forward(self, ids):
        return self.verdict(self.dropout(self.words(ids).mean(1)))


def make_reviews(seed=0):
    """Ids of words (n, LENGTH), verdicts, shops, the topic of each shop, and signs of words."""
    rng = np.random.default_rng(seed)
    # Every word praises in one or two of the topics.
    signs = np.array([rng.permutation([1, -1, rng.choice([1, -1])]) for _ in WORDS]).T
    topic, groups = np.arange(SHOPS) % 3, np.repeat(np.arange(SHOPS), REVIEWS)
    X = rng.integers(FILLERS, size=(len(groups), LENGTH))
    telling = rng.integers(len(WORDS), size=(len(groups), 3))
    X[:, :3] = FILLERS + telling
    score = np.take_along_axis(signs[topic[groups]], telling, axis=1).sum(axis=1)
    y = np.where(score > 0, "praise", "blame")
    return rng.permuted(X, axis=1), y, groups, topic, signs


def main():
    """Fit four methods and print what they found."""
    X, y, groups, topic, signs = make_reviews()
    train, test = next(iter(ClientKFold(5, random_state=0).split(X, y, groups)))
    model = TorchModel(Reviews, input_dtype="int", alpha=0.0)
    options = {"max_iter": ROUNDS, "tol": 0, "random_state": 0}
    options["training"] = Training(step_size=0.02)
    methods = {
        "CLoVE": CLoVE(model, n_clusters=3, **options),
        "IFCA": IFCA(model, n_clusters=3, **options),
        "one for all": FedAvg(model, **options),
        "one a shop": LocalModels(model, **options),
    }
    print(f"{'':14}{'accuracy':>9}{'ARI':>7}")
    for name, method in methods.items():
        method.fit(X[train], y[train], groups=groups[train])
        score = method.score(X[test], y[test], groups=groups[test])
        found = adjusted_rand_score(topic, method.labels_)
        index = f"{found:.2f}" if hasattr(method, "n_clusters") else "-"
        print(f"{name:14}{score:9.3f}{index:>7}")

    print("\nWhat the networks of CLoVE's clusters think of words, + praise, - blame")
    clove = methods["CLoVE"]
    print(f"{'':14}" + "".join(f"{word:>8}" for word in WORDS))
    for label in range(clove.n_clusters_):
        shop = int(np.flatnonzero(clove.labels_ == label)[0])
        network = clove.client_model(clove.groups_[shop])
        with torch.no_grad():
            verdicts = network.verdict(network.words.weight)
        # Classes are sorted: "blame", "praise".
        opinions = (verdicts[FILLERS:, 1] - verdicts[FILLERS:, 0]).numpy()
        row = "".join(f"{'+' if opinion > 0 else '-':>8}" for opinion in opinions)
        right = (np.sign(opinions) == signs[topic[shop]]).mean()
        print(f"{TOPICS[topic[shop]]:14}{row}   {right:.0%} as it was made")


if __name__ == "__main__":
    main()
