"""What do the networks of two clusters see differently?
=====================================================

Clients train a convolutional network of PyTorch, and half of them hold their images turned.

Twelve clients have handwritten digits, scikit-learn's 1797; every other client has turned all of
its images by a quarter, and nothing says which. IFCA finds the two kinds of clients and a network
for each, federated averaging has one network for all. ``client_model`` returns a client's network
as a module of PyTorch, so that its gradients can be asked: where does ink speak for a digit (red),
and where against it (blue), on average over all images, turned or not? The two clusters' networks
answer alike, but turned against each other; the one for all has to look both ways at once, and is
wrong four times as often.

Prints the accuracy on images that were held out, and how the two networks' answers correlate as
they are and turned back; draws the answers (it needs PyTorch, ``pip install "skcfl[torch]"``, and
matplotlib)::

    python examples/plot_torch_views.py [--figure torch_views.png]
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from skcfl import IFCA, FedAvg, Training
from skcfl.model_selection import ClientKFold
from skcfl.models import TorchModel

CLIENTS, ROUNDS = 12, 12
DIGITS = (0, 2, 4, 5, 7)


class DigitNet(nn.Module):
    """Two convolutions for images of 8 x 8, batch normalisation between."""

    def __init__(self, channels=8):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(32 * channels, 10)

    def forward(self, x):
        return self.classifier(self.features(x))


def make_clients():
    """Images (n, 1, 8, 8), their digits, and the clients; every other client turns them."""
    digits = load_digits()
    X, groups = (digits.images / 16)[:, None], np.arange(len(digits.target)) % CLIENTS
    turned = groups % 2 == 1
    X[turned] = np.rot90(X[turned], axes=(2, 3))
    return X, digits.target, groups


def evidence(module, digit, X):
    """Mean gradient of a digit's output above the others', by pixel: (8, 8)."""
    images = torch.from_numpy(X).float().requires_grad_()
    outputs = module(images)
    above = (outputs[:, digit] - outputs.mean(1)).sum()
    return torch.autograd.grad(above, images)[0].mean(0)[0].numpy()


def draw(means, answers, path):
    """Save the picture: mean images of each digit, and the networks' answers."""
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")  # safe for colour-blind readers
    rows = {**means, **answers}
    figure, axes = plt.subplots(len(rows), len(DIGITS), figsize=(9, 8.2))
    for (title, images), row in zip(rows.items(), axes, strict=True):
        for axis, image in zip(row, images, strict=True):
            if title in means:
                axis.imshow(image, cmap="Greys")
            else:
                most = np.abs(image).max()
                axis.imshow(image, cmap="RdBu_r", vmin=-most, vmax=most)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(title, rotation=0, ha="right", va="center", labelpad=8)
    figure.suptitle("Digits, and where ink speaks for them (red) or against (blue)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    """Fit both methods, print what they found, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="torch_views.png", help="where to save the picture")
    args = parser.parse_args()
    X, y, groups = make_clients()
    train, test = next(iter(ClientKFold(5, random_state=0).split(X, y, groups)))
    model = TorchModel(DigitNet)
    options = {"max_iter": ROUNDS, "tol": 0, "random_state": 0}
    options["training"] = Training(batch_size=32)
    ifca, fedavg = IFCA(model, n_clusters=2, **options), FedAvg(model, **options)
    for name, method in {"IFCA": ifca, "FedAvg": fedavg}.items():
        method.fit(X[train], y[train], groups=groups[train])
        score = method.score(X[test], y[test], groups=groups[test])
        print(f"{name:8}accuracy {score:.3f}, clusters of {method.cluster_sizes_.tolist()}")

    networks = {
        "IFCA,\nfirst cluster": ifca.client_model(0),
        "IFCA,\nsecond cluster": ifca.client_model(1),
        "FedAvg,\nall clients": fedavg.client_model(0),
    }
    answers = {
        title: [evidence(module, digit, X) for digit in DIGITS]
        for title, module in networks.items()
    }
    print("\nCorrelation of the answers of IFCA's two networks")
    print(f"{'digit':8}{'as they are':>12}{'turned back':>13}")
    first, second, _ = answers.values()
    for digit, one, other in zip(DIGITS, first, second, strict=True):
        turned = np.rot90(other, -1)
        both = [np.corrcoef(one.ravel(), image.ravel())[0, 1] for image in (other, turned)]
        print(f"{digit:<8}{both[0]:12.2f}{both[1]:13.2f}")
    means = {
        title: [X[(y == digit) & (groups % 2 == kind)].mean(0)[0] for digit in DIGITS]
        for kind, title in enumerate(("mean digit,\nupright", "mean digit,\nturned"))
    }
    draw(means, answers, args.figure)
    print(f"\nThe picture is in {args.figure}")


if __name__ == "__main__":
    main()
