"""``python -m tlrt COMMAND``."""

import argparse
import importlib
import sys
from collections.abc import Sequence

#: command: (module with main(argv) -> exit status, help)
COMMANDS = {
    "verify": ("tlrt.verify.command", "check every operation on every device against its specification"),
    "compare": ("tlrt.differential", "run one program on several devices and compare it operation by operation"),
    "doctor": ("tlrt.doctor", "say what was built, which devices are seen, and what is missing"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Hands the arguments after the command to its module."""
    parser = argparse.ArgumentParser(prog="python -m tlrt", description="float32 tensors on the CPU and CUDA.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    arguments, _ = parser.parse_known_args(argv)
    # What follows the command belongs to it, options with the same name as ours included.
    given = list(sys.argv[1:] if argv is None else argv)
    rest = given[given.index(arguments.command) + 1 :]
    try:
        return int(importlib.import_module(COMMANDS[arguments.command][0]).main(rest) or 0)
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "cffi", "_cffi_backend"):
            raise
        print(f"tlrt {arguments.command}: {error}; `python -m tlrt doctor` says what to install", file=sys.stderr)
        return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
