"""``python -m bench.ledger``: what a ledger adds to a training step of ``examples.char_gpt``, in one JSON document.

Runs of steps with and without the ledger alternate on one model, so that a disturbance meets both; a sample is the mean of a
run of as many steps as a ledger keeps waiting, between two synchronisations. Checkpoints are left out: they cost what it costs to
write a file.
"""

import argparse
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median

from audit.environment import describe_run
from examples import char_gpt, common
from tlrt import Session, ledger
from tlrt.verify.documents import write_document
from tlspec.registry import MATH


@dataclass
class Row:
    """Milliseconds of a step, and of it what the ledger adds: the median difference of neighbouring samples."""

    step: str
    plain_ms: float
    ledger_ms: float
    added_ms: float
    share: float
    samples: int


def measure(
    device: str, preset: str, math: str, states_every: int, *, capture: bool, operations: bool, steps: int
) -> Row:
    """One row, of about as many steps."""
    samples: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder, Session(device, math=math) as session:
        program = char_gpt.build(session, dict(char_gpt.PRESETS[preset]))
        program.capture = capture
        numbers = count()
        path = Path(folder) / "run.jsonl"
        with ledger.record(
            path, session, program.optimizer, checkpoint_every=0, states_every=states_every,
            operations=int(operations)
        ) as run:  # fmt: skip
            recorded = run.steps(steps + 2 * ledger.LAG)
            next(recorded)
            while sum(map(len, samples.values())) * ledger.LAG < steps:
                for is_recorded in samples:
                    (session.device.observe if is_recorded else session.device.ignore)(run._watch)
                    session.device.synchronize()
                    start = time.perf_counter()
                    for k in islice(numbers, ledger.LAG):
                        common._step(session, program, k).release()
                        if is_recorded:
                            next(recorded)
                    session.device.synchronize()
                    samples[is_recorded].append((time.perf_counter() - start) * 1e3 / ledger.LAG)
        program.optimizer.close()
    plain, kept = (found[1:] or found for found in samples.values())  # the first ones warm
    added = median(b - a for a, b in zip(plain, kept, strict=True))
    name = f"char_gpt {preset}{' captured' * capture}{', operations' * operations}"
    return Row(name, median(plain), median(kept), added, added / median(plain), len(plain))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    parser.add_argument("--preset", default="small", choices=sorted(char_gpt.PRESETS))
    parser.add_argument("--math", default="fast", choices=MATH)
    parser.add_argument(
        "--states-every", type=int, default=1, help="steps between fingerprints of the optimiser's states"
    )
    parser.add_argument("--steps", type=int, default=1000, help="steps of each row")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    given = parser.parse_args(argv)
    rows = []
    print(f"{'step':40} {'plain ms':>9} {'ledger ms':>9} {'added ms':>9} {'share':>7}")
    for capture, operations in ((False, False), (True, False), (False, True)):
        rows.append(
            measure(
                given.device,
                given.preset,
                given.math,
                given.states_every,
                capture=capture,
                operations=operations,
                steps=given.steps,
            )
        )
        r = rows[-1]
        print(f"{r.step:40} {r.plain_ms:9.3f} {r.ledger_ms:9.3f} {r.added_ms:9.3f} {100 * r.share:6.2f}%", flush=True)
    if given.json:
        write_document(
            given.json,
            {
                **describe_run([given.device]),
                "math": given.math,
                "states_every": given.states_every,
                "rows": [asdict(r) for r in rows],
            },
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
