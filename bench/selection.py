"""Which rows of the benchmark a command runs: ``--ops`` and ``--max-bytes``."""

import argparse
from dataclasses import dataclass

from tlspec import registry

#: the most bytes of a row's operands, by whether it runs on a GPU
LARGEST = {False: 1e9, True: 2e10}


@dataclass(frozen=True)
class Selection:
    """Names of operations, families or patterns, None for all; and whether transfers and the cost of a call are wanted."""

    names: list[str] | None
    core: bool


def parse_selection(text: str) -> Selection:
    given = [name.strip() for name in text.split(",")]
    names = [name for name in given if name != "core"]
    try:
        registry.ops(names)
    except KeyError as error:
        raise argparse.ArgumentTypeError(str(error.args[0])) from None
    return Selection(names, "core" in given)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments; `ops` is then a `Selection`."""
    parser.add_argument(
        "--ops", type=parse_selection, default=Selection(None, core=True), metavar="OPS",
        help="operations, families or patterns, comma-separated; 'core' is transfers and call cost (default all)",
    )  # fmt: skip
    defaults = f"default {LARGEST[False]:g} on the CPU, {LARGEST[True]:g} on CUDA"
    parser.add_argument("--max-bytes", type=float, help=f"skip larger sizes ({defaults})")
