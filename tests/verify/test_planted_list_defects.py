"""Planted defects in operations on lists: mistakes of fused multi-tensor kernels, each wrapped around correct ones, and verify
must find every one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tlrt
from tests import into
from tlrt import kernels
from tlrt.verify.report import Failure
from tlrt.verify.run import Runtime, counterpart
from tlrt.verify.verifier import Settings, Verifier, plan_cases
from tlspec import registry
from tlspec.draw.cases import draw_case
from tlspec.registry import Op

ROWS = [r for r in registry.ops() if r.signature.lists]
STEPS = [r for r in ROWS if any(o.listed for o in r.signature.outputs)]

Lists = list[list[np.ndarray]]


@dataclass
class Inside:
    """A call, as a defect sees it: input lists and parameters by name, and the right results of such a call."""

    row: Op
    arguments: dict[str, Any]
    count: int

    def run(self, **changed: Any) -> Lists:
        """The right results, on changed arguments."""
        arguments = dict(self.arguments)
        for name, value in changed.items():
            listed = isinstance(value, list)
            arguments[name] = [tlrt.Buffer.from_numpy(x) for x in value] if listed else value
        device = {"device": tlrt.device("cpu")} if self.row.signature.needs_context else {}
        results = getattr(kernels, self.row.name)(**{**arguments, **device})
        return [[x.numpy() for x in (r if isinstance(r, list) else [r])] for r in as_tuple(results)]

    def list(self, name: str) -> list[np.ndarray]:
        return [x.numpy() for x in self.arguments[name]]

    @property
    def first(self) -> str:
        return self.row.signature.lists[0].name


def without_momentum(c: Inside) -> Lists:
    """PyTorch's form of it, too, which a momentum of 0 does not go with."""
    return c.run(momentum=0.0, **{n: 0 for n in ("nesterov",) if n in c.arguments})


def as_tuple(results: Any) -> Sequence[Any]:
    return results if isinstance(results, tuple) else (results,)


class Spoilt:
    """The kernels' namespace with one operation replaced."""

    def __init__(self, row: Op, defect: Callable[[Inside], Lists]):
        self.row, self.defect, self.count = row, defect, 0

    def __getattr__(self, name: str) -> Any:
        return self.replacement if name == self.row.name else getattr(kernels, name)

    def replacement(self, *, out: Any = None, device: Any = None, **arguments: Any) -> Any:
        self.count += 1
        lists = self.defect(Inside(self.row, arguments, self.count))
        outputs = self.row.signature.outputs
        places = (None,) * len(outputs) if out is None else (out,) if len(outputs) == 1 else out
        made = []
        for o, xs, place in zip(outputs, lists, places, strict=True):
            kind = np.uint32 if o.kind == "index" else np.float32
            given = [None] * len(xs) if place is None else place if o.listed else [place]
            buffers = [into(g, x.astype(kind), tlrt.device("cpu")) for g, x in zip(given, xs, strict=True)]
            made.append(buffers if o.listed else buffers[0])
        return tuple(made) if len(made) > 1 else made[0]


def swapped_tensors(c: Inside) -> Lists:
    """Tensor i gets the gradient of the next one, where the lengths allow it."""
    name = c.row.signature.lists[-1].name
    xs = c.list(name)
    for i in range(len(xs) - 1):
        if len(xs[i]) == len(xs[i + 1]):
            xs[i], xs[i + 1] = xs[i + 1], xs[i]
    return c.run(**{name: xs})


def last_tensor_forgotten(c: Inside) -> Lists:
    right, before = c.run(), [c.list(counterpart(o)) for o in c.row.signature.outputs]
    for after, xs in zip(right, before, strict=True):
        if after:
            after[-1] = xs[-1]
    return right


def chunk_edge(c: Inside) -> Lists:
    """The element after the first 64 of a tensor is that before it."""
    right = c.run()
    for xs in right:
        for x in xs:
            x[64:65] = x[63:64] if len(x) > 64 else x[64:65]
    return right


def coupled(c: Inside) -> Lists:
    """L2 added to the gradient where it is to act on the parameters."""
    a = {k: v for k, v in c.arguments.items() if k != "device"}
    return [[x.numpy() for x in r] for r in kernels.adam_step(**a, device=tlrt.device("cpu"))]


def eps_in_the_root(c: Inside) -> Lists:
    vs = [v + np.float32(c.arguments["eps"]) for v in c.list("vs")]
    return [c.run(vs=vs, eps=0.0)[0], *c.run()[1:]]


def float32_squares(c: Inside) -> Lists:
    with np.errstate(all="ignore"):
        squares = [np.sum(x * x, dtype=np.float32) for x in c.list(c.first)]
        return [[np.sqrt(np.sum(np.array(squares, np.float32), dtype=np.float32, keepdims=True))]]


def quiet_norm(c: Inside) -> Lists:
    """NaN and infinities passed over."""
    return c.run(**{c.first: [np.nan_to_num(x, nan=0, posinf=0, neginf=0) for x in c.list(c.first)]})


def unclamped(c: Inside) -> Lists:
    norm = c.arguments["norm"].numpy()
    with np.errstate(all="ignore"):
        factor = np.float32(c.arguments["max_norm"]) / (norm + np.float32(c.arguments["eps"]))
        return [[x * factor for x in c.list(c.first)]]


def quiet_clamp(c: Inside) -> Lists:
    """A norm that is NaN clips nothing, as fmin has it."""
    norm = c.arguments["norm"]
    return [c.list(c.first)] if np.isnan(norm.numpy()).any() else c.run()


def even_part(x: np.ndarray) -> np.ndarray:
    """Without the element that has no partner: 0 in its place."""
    return np.concatenate([x[: len(x) // 2 * 2], np.zeros(len(x) % 2, np.float32)])


def without_nan(x: np.ndarray) -> np.ndarray:
    """With an infinity in the place of NaNs whose sign is set, as they would be another value."""
    return np.where(np.isnan(x) & np.signbit(x), np.float32(np.inf), x)


def with_zero(x: np.ndarray) -> np.ndarray:
    """Of an even length, as pairs are."""
    return np.concatenate([x, np.zeros(len(x) % 2, np.float32)])


def spoils_a_gradient(c: Inside) -> Lists:
    right = c.run()
    for x in c.arguments[c.row.signature.lists[-1].name][:1]:
        x.fill(3.0)
    return right


def writes_before_it_reads(c: Inside) -> Lists:
    """The second output of a step made of outputs already written: wrong every other call only, as a race would be."""
    right = c.run()
    if c.count % 2 == 0 and right[0]:
        right[0] = [np.nextafter(x, np.float32(0)) for x in right[0]]
    return right


def has(*names: str) -> Callable[[Op], bool]:
    return lambda row: set(names) <= {p.name for p in row.signature.params}


def named(*names: str) -> Callable[[Op], bool]:
    return lambda row: row.name in names


DEFECTS: list[tuple[str, Callable[[Op], bool], Callable[[Inside], Lists]]] = [
    ("tensors swapped", lambda row: len(row.signature.lists) > 1, swapped_tensors),
    ("last tensor forgotten", lambda row: row in STEPS, last_tensor_forgotten),
    ("off by one at a chunk's edge", lambda row: row in STEPS, chunk_edge),
    ("step off by one", has("step"), lambda c: c.run(step=min(c.arguments["step"] + 1, 2**64 - 1))),
    ("weight decay ignored", has("weight_decay"), lambda c: c.run(weight_decay=0.0)),
    ("dampening ignored", has("dampening"), lambda c: c.run(dampening=0.0)),
    ("nesterov ignored", has("nesterov"), lambda c: c.run(nesterov=0)),
    ("learning rate in half precision", has("lr"), lambda c: c.run(lr=float(np.float16(c.arguments["lr"])))),
    ("decay coupled", named("adamw_step"), coupled),
    (
        "eps inside the root",
        lambda row: has("eps")(row) and "vs" in {a.name for a in row.signature.lists},
        eps_in_the_root,
    ),
    ("momentum ignored", has("momentum"), without_momentum),
    ("squares in float32", named("global_norm"), float32_squares),
    ("one tensor not in the norm", named("global_norm"), lambda c: c.run(**{c.first: c.list(c.first)[:-1]})),
    ("NaN lost in the norm", named("global_norm"), quiet_norm),
    ("factor above 1", named("clip_scale"), unclamped),
    ("NaN norm clips nothing", named("clip_scale"), quiet_clamp),
    ("the last of an odd number lost", named("fingerprint"), lambda c: c.run(xs=[even_part(x) for x in c.list("xs")])),
    ("one NaN told from another", named("fingerprint"), lambda c: c.run(xs=[without_nan(x) for x in c.list("xs")])),
    ("zeros of both signs equal", named("fingerprint"), lambda c: c.run(xs=[x + np.float32(0) for x in c.list("xs")])),
    ("places ignored", named("fingerprint"), lambda c: c.run(xs=[np.sort(x) for x in c.list("xs")])),
    ("length ignored", named("fingerprint"), lambda c: c.run(xs=[with_zero(x) for x in c.list("xs")])),
    ("input overwritten", lambda row: len(row.signature.lists) > 1, spoils_a_gradient),
    ("bits differ from call to call", lambda row: row in STEPS, writes_before_it_reads),
]


def first_failure(row: Op, defect: Callable[[Inside], Lists]) -> Failure | None:
    """What verify says first about an operation with a defect."""
    verifier = Verifier({"cpu": Runtime("cpu", kernels=Spoilt(row, defect))})
    for seed, data, size in plan_cases(row, "forward", Settings()):
        if size != "large":
            for result in verifier.check(row, "forward", [draw_case(row, seed, data, size)]):
                if result.failures:
                    return result.failures[0]
    return None


@pytest.mark.parametrize(
    ("defect", "planted_in"),
    [pytest.param(d, r, id=f"{name}-{r.name}") for name, applies, d in DEFECTS for r in ROWS if applies(r)],
)
def test_defect_is_found(defect: Callable[[Inside], Lists], planted_in: Op) -> None:
    found = first_failure(planted_in, defect)
    assert found is not None and found.kind != "error", found


@pytest.mark.parametrize("control", [pytest.param(r, id=r.name) for r in ROWS[::3]])
def test_wrapping_alone_is_not_reported(control: Op) -> None:
    """The control: the same wrapper without a defect passes."""
    assert first_failure(control, lambda c: c.run()) is None


def test_every_defect_is_planted() -> None:
    assert [name for name, applies, _ in DEFECTS if not any(map(applies, ROWS))] == []
