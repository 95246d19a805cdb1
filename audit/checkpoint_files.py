"""Damaged checkpoint files: each is refused and changes nothing of the session, or loads.

Bits, bytes, tails, the header's length, the table of tensors and every place of the description are spoilt. Damage follows
from a seed and a number.
"""

import json
import random
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tlrt._terminal import Progress


class _Trainee:
    """A small session whose state can be compared."""

    def __init__(self, device: str = "cpu") -> None:
        from tlrt import Session, optim

        self.session = s = Session(device, seed=3)
        rng = np.random.default_rng(1)
        self.w = s.param(rng.standard_normal((4, 3)), "layer.weight")
        self.b = s.param(np.zeros(4), "layer.bias")
        self.x, self.y = rng.standard_normal((6, 3)), rng.standard_normal((6, 4))
        self.optimizer = optim.AdamW([self.w, self.b], lr=0.01)

    def step(self) -> None:
        s = self.session
        loss = s.mse_loss(s.dropout(s.linear(s.use(self.w), s.use(self.b), s.const(self.x)), 0.3), s.const(self.y))
        s.backward(loss)
        self.optimizer.step()
        s.reset()

    def bits(self) -> tuple[Any, ...]:
        arrays = [p.value for p in self.session.parameters.values()]
        settings, states = self.optimizer.state()
        arrays += list(states.values())
        random_state = (self.session.seed, self.session.counter)
        return ([np.ascontiguousarray(a).tobytes() for a in arrays], repr(settings), random_state)


#: what a number, text, list or table of the description is replaced by
_WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**32, 2**63, 2**64, -(2**64), 10**400, 0.5, 1e308, -0.0, "", "float32", "spec", [], {},
    [[]], ["layer.weight"], ["layer.weight", "layer.bias"], {"seed": 0}, "NaN", "0",
)  # fmt: skip
#: JSON that Python reads and no checkpoint holds
_RAW = ("NaN", "Infinity", "-Infinity", "1e999", "[" * 3000 + "]" * 3000, '"\\ud800"', "9" * 5000)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a JSON document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _replace(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at a place."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = _replace(document[path[0]], path[1:], value)
    return copy


def damage(content: bytes, rng: random.Random) -> bytes:
    """A checkpoint with something wrong, anywhere from a bit to its description."""
    way = rng.randrange(10)
    length = struct.unpack("<Q", content[:8])[0]
    header, data = content[8 : 8 + length], content[8 + length :]
    if way < 3:  # bytes: flipped, set, or those of the header alone
        raw = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8, 64))):
            raw[rng.randrange(8 + length if way == 1 else len(raw))] ^= rng.choice((1, 128, 255, rng.randrange(1, 256)))
        return bytes(raw)
    if way == 3:
        return content[: rng.randrange(len(content))]
    if way == 4:  # something left out, doubled or added
        a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        return content[:a] + rng.choice((b"", content[a:b] * 2, rng.randbytes(rng.randrange(1, 9)))) + content[b:]
    if way == 5:
        edges = (0, 1, length - 1, length + 1, len(content), 2**31, 2**32, 2**63, 2**64 - 1, rng.randrange(2**64))
        return struct.pack("<Q", rng.choice(edges)) + content[8:]
    outer = json.loads(header)
    inner = json.loads(outer["__metadata__"]["tlrt"])
    if way < 9:  # our own description, well-formed
        for _ in range(rng.choice((1, 1, 2))):
            places = list(_places(inner))
            inner = _replace(inner, rng.choice(places), rng.choice(_WRONG))
        text = json.dumps(inner)
        if rng.randrange(4) == 0:
            numbers = [w for w in ("0.01", "0.9", "0.999", "3", "2", "1") if w in text] or [text]
            text = text.replace(rng.choice(numbers), rng.choice(_RAW), 1)
        outer["__metadata__"]["tlrt"] = text
    else:  # the format's table of tensors
        names = [n for n in outer if n != "__metadata__"]
        name = rng.choice(names)
        entry = dict(outer[name])
        entry[rng.choice(("dtype", "shape", "data_offsets"))] = rng.choice(
            (
                "F64", "F16", "BF16", "I32", "BOOL", "I64", "U8", [4, 3], [12], [2**32, 2**32], [0, 0], [-1],
                [0, 2**40], 7, None, [],
            )
        )  # fmt: skip
        if rng.randrange(3) == 0:
            outer[rng.choice(names) + rng.choice(("", "x", "/"))] = entry
        else:
            outer[name] = entry
    packed = json.dumps(outer).encode()
    return struct.pack("<Q", len(packed)) + packed + data


def try_damaged(files: int, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """`files` damaged checkpoints: each is refused with CheckpointError, and nothing of the session changes, or loads."""
    from tlrt import checkpoint

    run = _Trainee(device)
    for _ in range(3):
        run.step()
    refused = loaded = 0
    failures: list[str] = []
    start = time.monotonic()
    progress = Progress(float(files), "files")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        checkpoint.save(path, run.session, run.optimizer, {"epoch": 3, "place": [1, 2]})
        good, before = path.read_bytes(), run.bits()
        memory = run.session.device.memory().live_buffers if device != "spec" else 0
        for i in range(files):
            path.write_bytes(damage(good, random.Random(f"{seed}/{i}")))
            try:
                checkpoint.load(path, run.session, run.optimizer)
                loaded += 1
            except checkpoint.CheckpointError:
                refused += 1
                if run.bits() != before:
                    failures.append(f"seed {seed} file {i}: refused, but the session has changed")
            except BaseException as error:
                failures.append(f"seed {seed} file {i}: {type(error).__name__}: {str(error)[:300]}")
                if isinstance(error, KeyboardInterrupt):
                    raise
            if run.bits() != before:
                path.write_bytes(good)
                checkpoint.load(path, run.session, run.optimizer)
                if run.bits() != before:
                    failures.append(f"seed {seed} file {i}: the sound checkpoint no longer loads")
            progress.advance(1.0, "checkpoint files")
            if len(failures) >= 20:
                break
        progress.close()
        if device != "spec" and run.session.device.memory().live_buffers > memory:
            failures.append(f"{run.session.device.memory().live_buffers} live buffers, expected at most {memory}")
        run.step()
        run.session.close()
    return {"files": refused + loaded + len(failures), "refused": refused, "loaded": loaded, "seed": seed,
            "failures": failures, "seconds": round(time.monotonic() - start, 1)}  # fmt: skip
