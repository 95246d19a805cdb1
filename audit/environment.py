"""Where a campaign runs: the source tree and its commit, the machine, the devices and the library."""

import datetime
import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlrt.verify.report import describe_versions

ROOT = Path(__file__).resolve().parent.parent
#: the committed files of measured runs
EVIDENCE = ROOT / "evidence"


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit(length: int = 40, tree: Path = ROOT) -> str:
    """A tree's commit, with '+' for local changes; nothing where git does not say."""
    if not (tree / ".git").exists():
        return ""
    answers = []
    for words in (["rev-parse", "HEAD"], ["status", "--porcelain"]):
        try:
            done = subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        answers.append(done.stdout.strip())
    return answers[0][:length] + ("+" if answers[1] else "")


def short_commit(revision: str) -> str:
    """The first seven digits of a commit, as pages name it, and the '+' of local changes."""
    return revision[:7] + "+" * revision.endswith("+")


def made(document: Mapping[str, Any]) -> str:
    """When and with which commit a campaign's document was made."""
    return f"{document['started'][:10]}, commit {short_commit(document['commit'])}"


def describe_run(devices: Sequence[str]) -> dict[str, Any]:
    """Where and with what a campaign runs, for its document."""
    import tlrt
    from tlrt._binding.library import load

    library = load()
    return {"started": now(), "devices": {d: tlrt.describe(d) for d in devices}, "build": dict(library.build_info),
            "library": hashlib.sha256(Path(library.path).read_bytes()).hexdigest()[:16],
            "versions": describe_versions(), "processors": processors()}  # fmt: skip
