"""A Fourier neural operator that learns the flow of Burgers' equation.

The equation is u_t + u·u_x = ν·u_xx on a periodic interval. The example draws smooth initial functions and integrates each to
t = 1 with a pseudo-spectral scheme in NumPy. It trains an operator from u(·, 0) to u(·, 1) on the relative L2 error. The
report has that error on test functions, on the training grid and on one twice as fine, and the error of u(·, 0) as the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from examples import common
from tlrt import Session, TensorRef, nn, optim

Array = npt.NDArray[np.float64]

PRESETS = {
    "small": {
        "steps": 3000, "batch": 16, "functions": 1000, "tests": 100, "grid": 64, "data_grid": 256, "width": 32, "modes": 16,
        "layers": 4, "viscosity": 0.05, "rate": 2e-3,
    },
    "large": {
        "steps": 10000, "batch": 32, "functions": 1000, "tests": 200, "grid": 256, "data_grid": 512, "width": 64, "modes": 24,
        "layers": 4, "viscosity": 0.05, "rate": 1e-3,
    },
}  # fmt: skip


def draw_initial(count: int, grid: int, rng: np.random.Generator) -> Array:
    """Smooth periodic functions on [0, 2π), (count, grid): Fourier coefficients normal with deviation 3/(1 + k²), k = 1..8.

    The same generator gives the same functions on every grid.
    """
    k = np.arange(1, 9)
    cosines, sines = rng.standard_normal((2, count, len(k))) * 3.0 / (1.0 + k * k)
    angles = np.outer(k, np.arange(grid) * (2 * math.pi / grid))
    return cosines @ np.cos(angles) + sines @ np.sin(angles)


def integrate(u: Array, viscosity: float, time: float = 1.0, steps: int | None = None) -> Array:
    """Solutions of Burgers' equation at `time` from u (count, grid) on [0, 2π).

    Pseudo-spectral in space, the product freed of aliases by the 2/3 rule; classical Runge-Kutta of order 4 in time on
    û·e^(νk²t), which takes diffusion exactly. Steps are half the grid's spacing over the largest speed unless given.
    Source: Canuto, Hussaini, Quarteroni and Zang, Spectral Methods, 2006.
    """
    grid = u.shape[-1]
    k = np.arange(grid // 2 + 1)
    if steps is None:
        steps = max(math.ceil(time * float(np.abs(u).max()) * grid / math.pi), 1)
    dt = time / steps
    half, kept = np.exp(-viscosity * k * k * dt / 2), k < grid / 3

    def slope(v: Any) -> Any:
        return -0.5j * k * np.where(kept, np.fft.rfft(np.fft.irfft(v, grid, axis=-1) ** 2, axis=-1), 0)

    v = np.fft.rfft(u, axis=-1)
    for _ in range(steps):
        a = slope(v)
        b = slope(half * (v + dt / 2 * a))
        c = slope(half * v + dt / 2 * b)
        d = slope(half * (half * v + dt * c))
        v = half * half * v + dt / 6 * (half * half * a + 2 * half * (b + c) + d)
    return np.fft.irfft(v, grid, axis=-1)


class FNO1d(nn.Layer):
    """The operator: points (batch, grid, 2) of :func:`add_positions` to (batch, grid), on any grid that has the modes.

    Value and position are lifted to `width` channels, pass spectral blocks, and are projected back through a hidden layer.
    """

    def __init__(self, session: Session, width: int, modes: int, layers: int) -> None:
        s = self.session = session
        self.lift = nn.Linear(s, 2, width, name="lift")
        self.blocks = [
            nn.FNOBlock1d(s, width, modes, name=f"block{i}", activation="gelu" if i + 1 < layers else None)
            for i in range(layers)
        ]
        self.hidden = nn.Linear(s, width, 2 * width, name="hidden")
        self.project = nn.Linear(s, 2 * width, 1, name="project")

    def __call__(self, x: npt.ArrayLike, *, training: bool = False) -> TensorRef:
        s = self.session
        h = self.lift(s.const(x))
        for block in self.blocks:
            h = block(h)
        return s.reshape(self.project(s.gelu(self.hidden(h))), np.shape(x)[:2])


def add_positions(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Values (batch, grid) beside their positions: (batch, grid, 2)."""
    values = np.asarray(x, np.float32)
    places = np.broadcast_to(np.arange(values.shape[1]) / values.shape[1], values.shape)
    return np.stack([values, places], -1).astype(np.float32)


def build(session: Session, settings: common.Settings) -> common.Program:
    s, grid, finest = session, settings["grid"], settings["data_grid"]
    if finest % (2 * grid):
        raise SystemExit(f"--set: data_grid: got {finest}, expected a multiple of twice the grid, {2 * grid}")
    start = draw_initial(settings["functions"] + settings["tests"], finest, np.random.default_rng(0))
    flow = integrate(start, settings["viscosity"])
    scale = float(start.std())
    cut = settings["functions"]
    x, y = (a[:cut, :: finest // grid].astype(np.float32) / scale for a in (start, flow))
    model = FNO1d(s, settings["width"], settings["modes"], settings["layers"])
    batches = common.Batches(cut, settings["batch"], s.seed)

    def batch(k: int) -> tuple[Array, ...]:
        chosen = batches(k)
        return add_positions(x[chosen]), y[chosen], np.linalg.norm(y[chosen], axis=1)

    def loss(points: npt.ArrayLike, wanted: npt.ArrayLike, norms: npt.ArrayLike) -> TensorRef:
        """The mean over the batch of ‖prediction - y‖/‖y‖."""
        distances = s.sqrt(s.reduce_sum_axis1(s.square(s.sub(model(points, training=True), s.const(wanted)))))
        return s.reduce_mean(s.div(distances, s.const(norms)))

    def error(predict: Callable[[Array], Array], points: int) -> float:
        """The mean relative L2 error on the test functions."""
        xs, ys = (a[cut:, :: finest // points] / scale for a in (start, flow))
        return float(np.mean(np.linalg.norm(predict(xs) - ys, axis=1) / np.linalg.norm(ys, axis=1)))

    def predicted(values: Array) -> Array:
        made = []
        for part in common.chunks(len(values), settings["batch"]):
            made.append(model(add_positions(values[part])).numpy().astype(np.float64))
            s.reset()
        return np.concatenate(made)

    def evaluate() -> dict[str, float]:
        return {
            "relative_l2_error": error(predicted, grid),
            "relative_l2_error_twice_the_grid": error(predicted, 2 * grid),
            "relative_l2_error_of_the_identity": error(lambda values: values, grid),
        }

    return common.Program(
        optim.Adam(model.parameters(), lr=settings["rate"]), batch, loss,
        lambda k: nn.schedules.cosine(
            k, peak=settings["rate"], total=settings["steps"], warmup=min(50, settings["steps"])
        ),
        evaluate, about={"train_functions": cut, "test_functions": settings["tests"]},
    )  # fmt: skip


EXAMPLE = common.Example("fno_burgers", __doc__ or "", PRESETS, build)
main = partial(common.main, EXAMPLE)
program = common.audited(EXAMPLE)

if __name__ == "__main__":
    main()
