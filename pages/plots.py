"""What the notebooks share: a training loop, and plots that read on light and dark pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.common import Program
from pages.figures import ERRORS, PARTS, plain_svg
from tlrt import Session

COLOURS = (ERRORS, PARTS, "#4ba36b", "#b65fbf")


def train(session: Session, program: Program, steps: int) -> list[float]:
    """Trains for some steps and returns the loss of each."""
    losses = []
    for k in range(steps):
        program.optimizer.lr = program.rate(k)
        loss = program.loss(*program.batch(k))
        session.backward(loss)
        if program.clip is not None:
            session.clip_grad_norm(program.clip)
        program.optimizer.step()
        losses.append(loss.item())
        session.reset()
    return losses


@dataclass
class Plot:
    """A figure of matplotlib that a notebook shows as SVG."""

    figure: Any
    label: str

    def _repr_svg_(self) -> str:
        return plain_svg(self.figure, self.label)


def new_figure(columns: int = 1, rows: int = 1, width: float = 7.2, height: float = 2.6) -> tuple[Any, list[Any]]:
    """A figure and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]


def curves(lines: Mapping[str, Sequence[float]], x: str, y: str, levels: Mapping[str, float] | None = None) -> Plot:
    """Lines over their index, and horizontal lines to compare with."""
    figure, (axes,) = new_figure()
    for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
        axes.plot(values, color=colour, linewidth=1.4, label=name)
    for (name, value), colour in zip((levels or {}).items(), COLOURS[len(lines) :], strict=False):
        axes.axhline(value, color=colour, linestyle="--", linewidth=1.2, label=name)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(lines) + len(levels or {}) > 1:
        axes.legend(frameon=False, fontsize=8)
    return Plot(figure, f"{y} over {x}")


def images(rows: Sequence[Sequence[Any]], titles: Sequence[str]) -> Plot:
    """Rows of small grey images, each row with its title."""
    columns = len(rows[0])
    figure, axes = new_figure(columns, len(rows), 7.2, 0.95 * len(rows))
    for i, place in enumerate(axes):
        place.imshow(rows[i // columns][i % columns], cmap="gray_r")
        place.set_xticks([])
        place.set_yticks([])
        place.spines[:].set_visible(False)
        if i % columns == 0:
            place.set_ylabel(titles[i // columns], rotation=0, ha="right", va="center", fontsize=9)
    return Plot(figure, ", ".join(titles))
