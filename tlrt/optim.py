"""Optimisers on the device: one fused kernel call per step for all parameters, in place on their mirrors.

    optimizer = AdamW(session.parameters.values(), lr=3e-4)
    session.backward(loss)
    session.clip_grad_norm(1.0)
    optimizer.step()
    session.reset()

The formulas are those of ``tlrt.kernels.sgd_step``, ``momentum_step``, ``adam_step``, ``adamw_step``, ``lion_step`` and
``rmsprop_step`` with its variants. Hyperparameters are attributes and may change between steps. :meth:`Optimizer.state` is
what a checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from tlrt._binding.together import Change, release_call, set_and_call
from tlrt._operations.names import missing_name
from tlrt._optimizer import Optimizer, Parameterised, Update, one_call, release_states
from tlrt.errors import ArgumentError, ArgumentTypeError, refusal
from tlrt.parameter import Parameter

__all__ = ["SGD", "Adam", "AdamW", "ExponentialMovingAverage", "Lion", "Optimizer", "RMSprop", "Update", "one_call"]


if not TYPE_CHECKING:  # else every name would be one

    def __getattr__(name: str) -> Any:
        raise missing_name("module 'tlrt.optim'", "optim", name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum where asked for.

    p ← p - lr·g' with g' = g + weight_decay·p. With momentum v ← momentum·v + g', p ← p - lr·v (Nesterov: p - lr·(g' +
    momentum·v)), v starting at 0.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        What is trained, see :class:`Optimizer`.
    lr : float
        Learning rate, 0 or more and finite, as all settings are.
    momentum : float
        Share of the velocity that stays. Whether there is a velocity is chosen here: 0 now cannot become more later.
    weight_decay : float
        Factor of p that is added to the gradient.
    nesterov : bool
        Nesterov's form; needs momentum.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        For a setting that is no number or out of range, and for parameters as :class:`Optimizer`.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> w = s.param([1.0], "w")
    >>> sgd = tlrt.optim.SGD([w], lr=0.5, momentum=0.5)
    >>> for _ in range(2):
    ...     (w * 1.0).sum().backward()
    ...     sgd.step()
    ...     s.reset()
    >>> w.value
    array([-0.25], dtype=float32)

    Source: torch.optim.SGD; Sutskever et al., ICML 2013.
    """

    hyper = ("lr", "momentum", "weight_decay", "nesterov")

    def __init__(
        self, parameters: Parameterised, lr: float = 0.01, *, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        self.slots = self._slots_of({"momentum": momentum})  # a wrong momentum is refused below
        super().__init__(parameters)
        self.lr, self.momentum, self.weight_decay, self.nesterov = lr, momentum, weight_decay, nesterov
        self._check(self._settings())

    def _slots_of(self, own: Mapping[str, Any]) -> tuple[str, ...]:
        return ("velocity",) if own.get("momentum") else self.slots

    def _check(self, settings: Mapping[str, Any]) -> None:
        super()._check(settings)
        momentum, nesterov = settings["momentum"], settings["nesterov"]
        if (momentum or nesterov) and not self.slots:
            got = f"momentum {momentum}, nesterov {nesterov}"
            raise refusal(ArgumentError, "SGD", "momentum", f"{got} of an optimizer made without", "SGD(…, momentum=…)")
        if nesterov and not momentum:
            raise refusal(ArgumentError, "SGD", "nesterov", "True with momentum 0", "momentum above 0")

    @one_call
    def _update(self, packed: Mapping[str, Any], gradients: Any) -> None:
        p = packed["p"]
        if not self.slots:
            device = self._counting()
            self.kernels.sgd_step(p, gradients, lr=self.lr, weight_decay=self.weight_decay, out=p, device=device)
            return
        v = packed["velocity"]
        self.kernels.momentum_step(
            p, gradients, v, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay,
            nesterov=int(self.nesterov), out=(p, v), device=self._counting(),
        )  # fmt: skip


class Adam(Optimizer):
    """Adam, with weight_decay·p added to the gradient.

    m ← β1·m + (1 - β1)·g, v ← β2·v + (1 - β2)·g², p ← p - lr·m̂/(√v̂ + eps) with m̂ = m/(1 - β1^t), v̂ = v/(1 - β2^t).

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        What is trained, see :class:`Optimizer`.
    lr : float
        Learning rate.
    beta1, beta2 : float
        Decay of m and v, 0 <= β < 1; PyTorch's betas.
    eps : float
        Added to √v̂.
    weight_decay : float
        Factor of p that is added to the gradient.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        For a setting that is no number or out of range, and for parameters as :class:`Optimizer`.

    Examples
    --------
    The first step is lr against the sign of the gradient:

    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> w = s.param([1.0, 2.0], "w")
    >>> adam = tlrt.optim.Adam([w], lr=0.5)
    >>> (w * s.const([3.0, -7.0])).sum().backward()
    >>> adam.step()
    >>> w.value.round(6)
    array([0.5, 2.5], dtype=float32)

    Source: Kingma and Ba, arXiv:1412.6980; torch.optim.Adam.
    """

    hyper = ("lr", "beta1", "beta2", "eps", "weight_decay")
    slots = ("m", "v")
    _kernel = "adam_step"

    def __init__(
        self, parameters: Parameterised, lr: float = 1e-3, *, beta1: float = 0.9, beta2: float = 0.999,
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters)
        self.lr, self.beta1, self.beta2, self.eps, self.weight_decay = lr, beta1, beta2, eps, weight_decay
        self._check(self._settings())

    @one_call
    def _update(self, packed: Mapping[str, Any], gradients: Any) -> None:
        p, m, v = packed["p"], packed["m"], packed["v"]
        getattr(self.kernels, self._kernel)(
            p, gradients, m, v, step=self.steps + 1, lr=self.lr, beta1=self.beta1, beta2=self.beta2, eps=self.eps,
            weight_decay=self.weight_decay, out=(p, m, v), device=self._counting(),
        )  # fmt: skip


class AdamW(Adam):
    """Adam whose decay is decoupled from the gradient.

    p ← p·(1 - lr·weight_decay) - lr·m̂/(√v̂ + eps), with m and v as in :class:`Adam`.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        What is trained, see :class:`Optimizer`.
    lr : float
        Learning rate.
    beta1, beta2 : float
        Decay of m and v, 0 <= β < 1; PyTorch's betas.
    eps : float
        Added to √v̂.
    weight_decay : float
        Share of p that a step of rate 1 takes away.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        For a setting that is no number or out of range, and for parameters as :class:`Optimizer`.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> w = s.param([1.0], "w")
    >>> adamw = tlrt.optim.AdamW([w], lr=0.5, weight_decay=0.5)
    >>> (w * 0.0).sum().backward()  # no gradient: the decay alone
    >>> adamw.step()
    >>> w.value
    array([0.75], dtype=float32)

    Source: Loshchilov and Hutter, arXiv:1711.05101; torch.optim.AdamW.
    """

    _kernel = "adamw_step"

    def __init__(
        self,
        parameters: Parameterised,
        lr: float = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)


class RMSprop(Optimizer):
    """Gradients over the root of their mean square.

    v ← alpha·v + (1 - alpha)·g'², p ← p - lr·g'/(√v + eps) with g' = g + weight_decay·p. With momentum b ← momentum·b +
    g'/(√v + eps), p ← p - lr·b. Centered, v - m² stands in the root, with m ← alpha·m + (1 - alpha)·g'.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        What is trained, see :class:`Optimizer`.
    lr : float
        Learning rate.
    alpha : float
        Decay of v and m, 0 <= alpha < 1.
    eps : float
        Added to the root.
    weight_decay : float
        Factor of p that is added to the gradient.
    momentum : float
        Share of b that stays. Whether there is one is chosen here, as `centered` is.
    centered : bool
        Whether the mean is taken off.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        For a setting that is no number or out of range, and for parameters as :class:`Optimizer`.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> w = s.param([1.0], "w")
    >>> rmsprop = tlrt.optim.RMSprop([w], lr=0.25, alpha=0.75)
    >>> (w * 4.0).sum().backward()
    >>> rmsprop.step()
    >>> w.value
    array([0.5], dtype=float32)

    Source: torch.optim.RMSprop.
    """

    hyper = ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")
    slots: tuple[str, ...] = ("v",)

    def __init__(
        self, parameters: Parameterised, lr: float = 0.01, *, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False,
    ) -> None:  # fmt: skip
        self.slots = self._slots_of({"momentum": momentum, "centered": centered})
        super().__init__(parameters)
        self.lr, self.alpha, self.eps, self.weight_decay = lr, alpha, eps, weight_decay
        self.momentum, self.centered = momentum, centered
        self._check(self._settings())

    def _slots_of(self, own: Mapping[str, Any]) -> tuple[str, ...]:
        if own.get("centered", "m" in self.slots):
            return ("v", "m", "b")
        return ("v", "b") if own.get("momentum") or "b" in self.slots else ("v",)

    def _check(self, settings: Mapping[str, Any]) -> None:
        super()._check(settings)
        momentum, centered = settings["momentum"], settings["centered"]
        if (momentum and "b" not in self.slots) or bool(centered) != ("m" in self.slots):
            got, expected = f"{momentum}, {centered} set later", "RMSprop(…, momentum=…, centered=…)"
            raise refusal(ArgumentError, "RMSprop", "momentum, centered", got, expected)

    @one_call
    def _update(self, packed: Mapping[str, Any], gradients: Any) -> None:
        p, states, kernels = packed["p"], [packed[slot] for slot in self.slots], self.kernels
        options = {"lr": self.lr, "alpha": self.alpha, "eps": self.eps, "weight_decay": self.weight_decay}
        step = kernels.rmsprop_step
        if "b" in self.slots:
            step = kernels.rmsprop_centered_step if "m" in self.slots else kernels.rmsprop_momentum_step
            options["momentum"] = self.momentum
        step(p, gradients, *states, **options, out=(p, *states), device=self._counting())


class Lion(Optimizer):
    """Steps by the sign of an interpolated momentum.

    p ← p·(1 - lr·weight_decay) - lr·sign(β1·m + (1 - β1)·g), then m ← β2·m + (1 - β2)·g.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        What is trained, see :class:`Optimizer`.
    lr : float
        Learning rate.
    beta1, beta2 : float
        Shares of m in the step and in the next m, 0 <= β < 1.
    weight_decay : float
        Share of p that a step of rate 1 takes away.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        For a setting that is no number or out of range, and for parameters as :class:`Optimizer`.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> w = s.param([1.0, 2.0], "w")
    >>> lion = tlrt.optim.Lion([w], lr=0.5)
    >>> (w * s.const([3.0, -7.0])).sum().backward()
    >>> lion.step()
    >>> w.value
    array([0.5, 2.5], dtype=float32)

    Source: Chen et al., arXiv:2302.06675.
    """

    hyper = ("lr", "beta1", "beta2", "weight_decay")
    slots = ("m",)

    def __init__(
        self, parameters: Parameterised, lr: float = 1e-4, *, beta1: float = 0.9, beta2: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters)
        self.lr, self.beta1, self.beta2, self.weight_decay = lr, beta1, beta2, weight_decay
        self._check(self._settings())

    @one_call
    def _update(self, packed: Mapping[str, Any], gradients: Any) -> None:
        p, m = packed["p"], packed["m"]
        self.kernels.lion_step(
            p, gradients, m, lr=self.lr, beta1=self.beta1, beta2=self.beta2, weight_decay=self.weight_decay,
            out=(p, m), device=self._counting(),
        )  # fmt: skip


class ExponentialMovingAverage(Optimizer):
    """Averages of parameters on the device, from their values when it is made.

    average ← average + (1 - decay)·(p - average). A checkpoint takes it as one of the optimisers. Parameters that
    require no gradient when it is made, running statistics among them, are left out.

    Parameters
    ----------
    parameters : iterable of Parameter
        What is averaged.
    decay : float
        Share of the average that stays, 0 to 1.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        For a decay that is no number or out of range, for dicts, and for parameters as :class:`Optimizer`.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> w = s.param([0.0], "w")
    >>> average = tlrt.optim.ExponentialMovingAverage([w], decay=0.75)
    >>> w.set([4.0])
    >>> average.update()
    >>> with average.swapped():
    ...     w.value.tolist()
    [1.0]
    >>> w.value.tolist()
    [4.0]

    Source: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn.
    """

    hyper = ("decay",)
    slots = ("average",)

    def __init__(self, parameters: Iterable[Parameter], decay: float = 0.999) -> None:
        super().__init__(parameters)
        if self.groups:
            self.close()
            raise refusal(ArgumentTypeError, type(self).__name__, "parameters", "dicts", "a list of Parameter")
        self.decay = decay
        self._is_swapped = False
        self._check(self._settings())
        release_states(self._state)
        self._state = {"average": [p.mirror.copy() for p in self.parameters]}

    def _check_value(self, name: str, value: Any) -> None:
        super()._check_value(name, value)
        if value > 1:
            raise refusal(ArgumentError, type(self).__name__, name, value, f"0 <= {name} <= 1")

    def update(self) -> None:
        """Moves the averages towards the parameters' present values.

        Raises
        ------
        CaptureError
            Within a captured function: call it after the captured step.
        ArgumentError
            While the averages are swapped.
        """
        self._require_averages("update")
        with self._alone():
            self._require_valid_settings()
            kernels, weight = self.kernels, 1.0 - self.decay
            for p, average in zip(self.parameters, self._state["average"], strict=True):
                difference = kernels.sub(p.mirror, average)
                kernels.axpy(average, difference, weight, out=average)
                difference.release()
            self.steps += 1

    def step(self) -> None:
        """The same as :meth:`update`."""
        self.update()

    def swap(self) -> None:
        """Exchanges the values of the parameters and the averages, all of them or none; a second swap takes it back.

        Results on the tape that were computed from the old values cannot go backward.

        Raises
        ------
        CaptureError
            Within a captured function.
        """
        self._require_open("swap")
        self.session._require_uncaptured("swap")
        averages = self._state["average"]
        # copies, as a captured step has places of its own for parameters
        into = [average.copy() for average in averages]
        saved = [p.mirror.copy() for p in self.parameters]
        changes = [c for p, mirror in zip(self.parameters, into, strict=True) for c in p._changed(None, mirror)]
        old = [*averages, *(p.mirror for p in self.parameters)]
        swapped = (self, "_is_swapped", not self._is_swapped)
        set_and_call([*changes, (self, "_state", {"average": saved}), swapped], list(map(release_call, old)))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The context in which the parameters have the averages' values.

        Returns
        -------
        context manager
            It swaps on the way in and on the way out.

        Raises
        ------
        ArgumentError
            While the averages are swapped.
        """
        self._require_averages("swapped")
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """What a resumed run needs, see :meth:`Optimizer.state`.

        Returns
        -------
        settings, states : dict
            The decay and the number of updates, and the averages under "average/parameter".

        Raises
        ------
        ArgumentError
            While the averages are swapped.
        """
        self._require_averages("state")
        return super().state()

    def _loaded(self, settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[Change]:
        self._require_averages("load_state")
        return super()._loaded(settings, arrays)

    def _require_averages(self, op: str) -> None:
        self._require_open(op)
        self.session._require_uncaptured(op)
        if self._is_swapped:
            got, expected = "averages swapped into the parameters", "a second swap() before"
            raise refusal(ArgumentError, op, type(self).__name__, got, expected)
