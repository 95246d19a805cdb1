"""``python examples/c/export_digits.py FILE``: trains a network of two affine layers on scikit-learn's digits and writes what
digits.c reads: sizes, weights, biases, the images of the test set, their scores and their labels."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples import images
from tlrt import Session, nn, optim

HIDDEN, CLASSES, STEPS = 32, 10, 300


def main(path: str) -> None:
    (x, y), (x_test, y_test) = images.digits()
    x, x_test = (a.reshape(len(a), -1) for a in (x, x_test))
    with Session("cpu", seed=0, math="reproducible") as s:
        first, second = nn.Linear(s, x.shape[1], HIDDEN, name="first"), nn.Linear(s, HIDDEN, CLASSES, name="second")
        optimizer = optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2)
        for _ in range(STEPS):
            s.backward(s.cross_entropy(second(s.relu(first(s.const(x)))), y))
            optimizer.step()
            s.reset()
        scores = second(s.relu(first(s.const(x_test)))).numpy()
        arrays = [first.weight, first.bias, second.weight, second.bias]
        with open(path, "wb") as file:
            np.array([len(x_test), x.shape[1], HIDDEN, CLASSES, 0], np.uint32).tofile(file)
            for a in [*(p.numpy() for p in arrays), x_test, scores]:
                np.ascontiguousarray(a, np.float32).tofile(file)
            y_test.tofile(file)


if __name__ == "__main__":
    main(sys.argv[1])
