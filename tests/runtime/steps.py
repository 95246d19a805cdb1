"""Training steps that several tests capture or repeat."""

from typing import Any

from tlrt import optim


class Halving(optim.Optimizer):
    """An optimiser of one's own, whose numbers come from Python at each step."""

    hyper = ("lr",)

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters)
        self.lr = lr

    def _update(self, packed: Any, gradients: Any) -> None:
        for p, g in zip(packed["p"], gradients, strict=True):
            self.kernels.axpy(p, g, -self.lr / 2 ** (self.steps % 2), out=p)


def minimise_square(optimizer: optim.Optimizer, x: Any) -> Any:
    """A step of the optimiser's one parameter w that decreases (w·x)²; returns the loss."""
    s, (w,) = optimizer.session, optimizer.parameters
    loss = s.reduce_sum(s.square(s.mul(w, s.const(x))))
    s.backward(loss)
    optimizer.step()
    return loss
