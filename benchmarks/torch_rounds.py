"""Time of a communication round with modules of PyTorch over that of a bare loop in PyTorch.

A round: 40 clients of 100 images of 28 x 28 train a module for ten steps of Adam on all of their
rows, and the server averages. The bare loop does the same with ``torch.optim.Adam``, one client
after the other, and nothing else. Both are measured in this run, turn by turn; the figures are
medians of the ratios, of CPU time on one thread, and megabytes of the most memory of a round
beyond what is there before it (``--memory``, in a process of its own each)::

    python benchmarks/torch_rounds.py [--repeats 9] [--memory]

Where there is a GPU the rounds a second of both on it are printed too.
"""

import argparse
import copy
import gc
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from skcfl.calls.first_order import LocalUpdate
from skcfl.federation.inprocess import open_rows
from skcfl.models import TorchModel

CLIENTS, ROWS, STEPS, STEP = 40, 100, 10, 0.005
TARGET = 1.15


class LeNet(nn.Module):
    """Two convolutions, as for digits of 28 x 28; about 45,000 parameters."""

    def __init__(self, n_outputs=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(nn.Linear(400, 100), nn.ReLU(), nn.Linear(100, n_outputs))

    def forward(self, x):
        return self.classifier(self.features(x))


class Perceptron(nn.Sequential):
    """One hidden layer of 200 units, 159,010 parameters."""

    def __init__(self, n_outputs=10):
        super().__init__(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, n_outputs))


MODULES = {"LeNet": LeNet, "MLP, 200 units": Perceptron}


def make_job(kind, device="cpu"):
    """Images, classes, and the pool of their clients."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(CLIENTS * ROWS, 1, 28, 28)).astype(np.float32)
    y = rng.integers(10, size=len(X))
    model = TorchModel(kind, alpha=0.0, input_shape=(1, 28, 28), device=device).bind(784, 10)
    codes = np.repeat(np.arange(CLIENTS), ROWS)
    pool = open_rows(model, X.reshape(len(X), -1), y, codes, CLIENTS, random_state=0)
    return X.reshape(CLIENTS, ROWS, 1, 28, 28), y.reshape(CLIENTS, ROWS), pool


def bare(module, X, y, start):
    """The round in PyTorch: the mean state of the clients' modules."""
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for images, classes in zip(X, y, strict=True):
        module.load_state_dict(start)
        optimizer = torch.optim.Adam(module.parameters(), lr=STEP)
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(images), classes).backward()
            optimizer.step()
        for name, value in module.state_dict().items():
            total[name] += value / len(X)
    return total


def ours(pool, start):
    """The round of this package."""
    return pool.ask(LocalUpdate, start, STEPS, STEP, "adam").mean(axis=0)


def rounds(kind, device="cpu"):
    """The two rounds as functions without arguments."""
    X, y, pool = make_job(kind, device)
    start = pool.start()
    worker = copy.deepcopy(pool.model.plain(start, None)).to(device).train()
    state = {name: value.clone() for name, value in worker.state_dict().items()}
    tensors = torch.from_numpy(X).to(device), torch.from_numpy(y).to(device)
    return {"bare": lambda: bare(worker, *tensors, state), "ours": lambda: ours(pool, start)}


def timed(function):
    """CPU seconds of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def rounds_a_second(function, repeats=10):
    """Rate of calls on the GPU, after a first one."""
    function()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repeats):
        function()
    torch.cuda.synchronize()
    return repeats / (time.perf_counter() - begun)


def peak(name, which):
    """Megabytes that a round takes at most beyond what there was, in this process."""
    function = rounds(MODULES[name])[which]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the highest mark begins anew
    before = resident("VmRSS")
    function()
    return resident("VmHWM") - before


def resident(entry):
    """Megabytes of this process, as Linux counts them."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{entry}:\s+(\d+) kB", status)[1]) / 1024


def main():
    """Print one line for each module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.peak:
        print(f"{peak(*args.peak):.1f}")
        return
    print(f"{CLIENTS} clients of {ROWS} images, {STEPS} steps of Adam, one thread")
    print(f"{'module':16}{'bare':>9}{'ours':>9}{'ratio':>8}{'target':>8}")
    for name, kind in MODULES.items():
        both = rounds(kind)
        agree = torch.cat([value.ravel() for value in both["bare"]().values()]).numpy()
        away = np.abs(agree - both["ours"]()).max()
        times = [{key: timed(call) for key, call in both.items()} for _ in range(args.repeats)]
        ratio = np.median([turn["ours"] / turn["bare"] for turn in times])
        best = {key: min(turn[key] for turn in times) for key in both}
        print(
            f"{name:16}{best['bare']:8.3f}s{best['ours']:8.3f}s{ratio:8.2f}{TARGET:8.2f}"
            f"   largest difference of the models {away:.1e}",
            flush=True,
        )
        if args.memory:
            megabytes = [
                subprocess.run(
                    [sys.executable, __file__, "--peak", name, which],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout.strip()
                for which in both
            ]
            print(f"{'':16}{megabytes[0]:>7}MB{megabytes[1]:>7}MB")
    if torch.cuda.is_available():
        print("on CUDA, rounds a second")
        for name, kind in MODULES.items():
            both = rounds(kind, "cuda")
            rates = {key: rounds_a_second(call) for key, call in both.items()}
            away = np.abs(both["ours"]() - rounds(kind)["ours"]()).max()
            print(
                f"{name:16}{rates['bare']:9.1f}{rates['ours']:9.1f}"
                f"{rates['bare'] / rates['ours']:8.2f}"
                f"   largest difference from the model of the CPU {away:.1e}"
            )


if __name__ == "__main__":
    main()
