"""``python -m tlrt COMMAND``, and ``tlrt COMMAND`` where the package is installed."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import tlrt
from tlrt._terminal import program_name


class Command(NamedTuple):
    """A module with main(argv) -> exit status."""

    module: str
    help: str


COMMANDS = {
    "verify": Command("tlrt.verify.command", help="check every operation on every device against its specification"),
    "compare": Command(
        "tlrt.differential", help="run one program on several devices and compare it operation by operation"
    ),
    "audit": Command("tlrt.audit", help="compute the steps of a ledger again and name the first that departs"),
    "launch": Command(
        "tlrt.distributed.launch", help="run a program as several processes of one group, on this machine"
    ),
    "onnx": Command(
        "tlrt.onnx.command", help="say what a model in the ONNX format consists of, and compare devices on it"
    ),
    "explain": Command("tlrt.explain", help="say which algorithm an operation takes on a GPU, and why"),
    "doctor": Command("tlrt.doctor", help="say what was built, which devices are seen, and what is missing"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Hands the arguments after the command to its module."""
    parser = argparse.ArgumentParser(prog=program_name(), description="float32 tensors on the CPU and CUDA.")
    parser.add_argument("--version", action="version", version=f"tlrt {tlrt.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help, add_help=False)
    arguments, _ = parser.parse_known_args(argv)
    # What follows the command belongs to it, options with the same name as ours included.
    given = list(sys.argv[1:] if argv is None else argv)
    rest = given[given.index(arguments.command) + 1 :]
    try:
        return int(importlib.import_module(COMMANDS[arguments.command].module).main(rest) or 0)
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "cffi", "_cffi_backend", "onnx"):
            raise
        print(f"tlrt {arguments.command}: {error}; `python -m tlrt doctor` says what to install", file=sys.stderr)
        return 1


def run() -> None:
    """The command line."""
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
