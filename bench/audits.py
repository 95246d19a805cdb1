"""``python -m bench.audits``: a run of ``examples.char_gpt`` in the mode ``reproducible``, recorded on a device and audited on
the CPU, as one JSON document. Exit status 1 unless every audit ends as it must.

The middle steps are computed again in each SIMD variant of the CPU, and every bit must be as recorded. Then they are computed
again three times with something changed in the middle of them: one bit of a weight, the learning rate by its last bit, one
character of the batch. Each audit must name that step and what departs.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import describe_run
from examples import char_gpt, common
from tlrt import Session, ledger
from tlrt._capture.recorded import uploader
from tlrt._terminal import Progress, format_table
from tlrt.audit import audit
from tlrt.verify.documents import write_document
from tlrt.verify.run import cpu_settings, cpu_variants

#: where in the audited steps something is changed, as a share of them
AT = 0.5
#: steps between checkpoints of the run
EVERY = 100

Change = Callable[[Session, common.Program, int], None]


@dataclass
class Row:
    """One audit: what was changed at which step, the steps computed again, the step and the kinds that it names."""

    changed: str
    planted_at: int | None
    variant: str
    first: int
    stop: int
    departs_at: int | None
    kinds: list[str]
    seconds: float
    as_expected: bool


def _before(program: common.Program, at: int, act: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Calls `act` with the batch of one step, whose result is trained on."""
    draw = program.batch
    program.batch = lambda k: act(draw(k)) if k == at else draw(k)


def flip_weight(session: Session, program: common.Program, at: int) -> None:
    """The last bit of the head's first weight, in the device's memory, before the step; nobody is told of it."""

    def act(batch: tuple[Any, ...]) -> tuple[Any, ...]:
        buffer = session.parameters["head.weight"].mirror
        bits = buffer.numpy().view(np.uint32)
        bits[0] ^= np.uint32(1)
        if uploader(buffer)(bits.view(np.float32)):
            raise RuntimeError("the weight was not written")
        return batch

    _before(program, at, act)


def change_rate(session: Session, program: common.Program, at: int) -> None:
    """The learning rate of the step, by one unit in its last place."""
    rate = program.rate
    program.rate = lambda k: float(np.nextafter(rate(k), 1.0)) if k == at else rate(k)


def change_batch(session: Session, program: common.Program, at: int) -> None:
    """One character of the step's batch, which becomes the one before it."""

    def act(batch: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *rest = (np.array(part) for part in batch)
        x[0, 1] = x[0, 0] if x[0, 1] != x[0, 0] else (x[0, 0] + 1) % 2
        return (x, *rest)

    _before(program, at, act)


#: what is changed -> how, and the kind of departure that names it; a weight is state, so a step departs in what it makes of it
CHANGES: dict[str, tuple[Change, str]] = {
    "one bit of a weight": (flip_weight, "parameter"),
    "the learning rate": (change_rate, "hyperparameter"),
    "one character of the batch": (change_batch, "input"),
}


def record(path: Path, device: str, steps: int) -> None:
    """Trains the preset "small" for some steps, with a ledger and its checkpoints beside it."""
    settings = {**char_gpt.PRESETS["small"], "steps": steps}
    with Session(device, seed=0, math="reproducible") as session, Progress(steps, "steps") as progress:
        program = char_gpt.build(session, dict(settings))
        kept = {"settings": settings, "capture": False}
        with ledger.record(path, session, program.optimizer, checkpoint_every=EVERY, settings=kept) as run:
            for k in run.steps(steps):
                common._step(session, program, k).release()
                progress.advance(1)
        program.optimizer.close()


def audit_steps(path: Path, steps: tuple[int, int], variant: str, changed: str = "", at: int | None = None) -> Row:
    """One audit on the CPU."""
    example, kind = char_gpt.EXAMPLE, ""
    if changed:
        change, kind = CHANGES[changed]

        def build(session: Session, settings: common.Settings) -> common.Program:
            program = char_gpt.build(session, settings)
            change(session, program, int(at or 0))
            return program

        example = dataclasses.replace(example, build=build)
    start = time.perf_counter()
    with cpu_settings(variant=variant):
        report = audit(common.audited(example), path, device="cpu", steps=steps)
    kinds = sorted({d.kind for d in report.departures})
    departs = report.departures[0].step if report.departures else None
    expected = report.ok if not changed else departs == at and kind in kinds
    return Row(changed or "nothing", at, variant, report.first, report.stop, departs, kinds,
               round(time.perf_counter() - start, 2), expected)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.audits", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default="cpu", help="where the run is recorded: cpu, cuda, cuda:1")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the run (default 1000)")
    parser.add_argument("--audited", type=int, default=20, help="steps that are audited (default 20)")
    parser.add_argument("--json", type=Path, help="write the document to a file")
    parser.add_argument("--commit", default=None, help="the commit to record where git cannot tell")
    given = parser.parse_args(argv)
    first = given.steps // 2
    steps, at = (first, first + given.audited), first + int(given.audited * AT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        start = time.perf_counter()
        record(path, given.device, given.steps)
        seconds = round(time.perf_counter() - start, 2)
        rows = [audit_steps(path, steps, variant) for variant in cpu_variants()]
        rows += [audit_steps(path, steps, cpu_variants()[-1], changed, at) for changed in CHANGES]
    print(format_table(("changed", "at step", "variant", "computed again", "departs at", "what departs", "as expected"), [
        (r.changed, "" if r.planted_at is None else r.planted_at, r.variant, f"{r.first} to {r.stop - 1}",
         "nowhere" if r.departs_at is None else r.departs_at, ", ".join(r.kinds[:3]), "yes" if r.as_expected else "NO")
        for r in rows
    ]))  # fmt: skip
    if given.json:
        devices = list(dict.fromkeys(("cpu", given.device)))
        document = {**describe_run(devices), "recorded_on": given.device, "steps": given.steps, "record_seconds": seconds,
                    "rows": [asdict(r) for r in rows]}  # fmt: skip
        write_document(given.json, {**({"commit": given.commit} if given.commit else {}), **document})
    return int(not all(r.as_expected for r in rows))


if __name__ == "__main__":
    sys.exit(main())
