"""Training steps that several tests capture or repeat."""

from typing import Any

from tlrt import optim


def minimise_square(optimizer: optim.Optimizer, x: Any) -> Any:
    """A step of the optimiser's one parameter w that decreases (w·x)²; returns the loss."""
    s, (w,) = optimizer.session, optimizer.parameters
    loss = s.reduce_sum(s.square(s.mul(w, s.const(x))))
    s.backward(loss)
    optimizer.step()
    return loss
