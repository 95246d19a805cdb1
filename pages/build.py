"""Puts the pages into one folder, out/pages, and has MkDocs make the site of them, out/site."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from audit.environment import EVIDENCE, ROOT
from audit.summary import read_summaries
from bench import results
from pages import execute, figures, operations, sources
from pages.check import problems
from tlspec import registry

#: where pages and the site go, and what is kept from one build to the next
PAGES, SITE, KEPT = ROOT / "out/pages", ROOT / "out/site", ROOT / "out/pages-kept"
CONFIGURATION = Path(__file__).with_name("mkdocs.yml")
#: pages that end with tables of the summaries
TABLES = {
    "docs/results.md": results.speed_tables, "docs/trust.md": results.trust_tables, "docs/league.md": results.league_tables,
}  # fmt: skip

Navigation = list[Any]


def navigation() -> Navigation:
    """The tree of pages that the site shows beside a page. A document that has no place of its own is a guide."""
    tree = _places()
    named = set(pages_of(tree))
    guides = next(section["Guides"] for section in tree if "Guides" in section)
    guides += [place for place in map(sources.place_of, sources.documents()) if place not in named]
    return tree


def pages_of(tree: Any) -> list[str]:
    """The pages that a tree of navigation names."""
    if isinstance(tree, str):
        return [tree]
    return [page for item in (tree.values() if isinstance(tree, dict) else tree) for page in pages_of(item)]


def _places() -> Navigation:
    return [
        {"Start": ["index.md", {"Overview": "overview.md"}, {"Glossary": "docs/glossary.md"}, {"Changes": "CHANGELOG.md"}]},
        {"Tutorials": [
            {"Train a model": "docs/train.md"}, {"Check a kernel": "docs/judge.md"},
            {"Judge a task": "docs/tasks.md"}, {"What bits depend on": "docs/invariance.md"},
            {"Use the library from C": "docs/c.md"},
            {"Examples as notebooks": ["notebooks/index.md", *(f"notebooks/{name}.md" for name in execute.NAMES)]},
        ]},
        {"Guides": [
            {"The session": "docs/session.md"}, {"The same bits on a GPU": "docs/reproducible.md"},
            {"PyTorch models": "docs/torch.md"}, {"Coming from PyTorch": "docs/pytorch.md"}, {"Examples": "docs/examples.md"},
            {"Writing a model": "docs/models.md"}, {"Memory of other libraries": "docs/exchange.md"},
            {"Records of a training run": "docs/ledger.md"}, {"Many processes": "docs/distributed.md"},
            {"Coming from the ancestor": "docs/ancestor.md"}, {"Contributing": "CONTRIBUTING.md"},
        ]},
        {"Operations": operations.navigation()},
        {"Guarantees": [
            {"Trust boundaries": "TRUST_BOUNDARIES.md"}, {"Promises and evidence": "docs/trust.md"},
            {"Campaigns": "docs/campaign.md"}, {"Evidence": "evidence/index.md"},
        ]},
        {"Results": [
            {"Speed": "docs/results.md"}, {"Other libraries": "docs/league.md"},
        ]},
    ]  # fmt: skip


def collect() -> dict[str, str | bytes]:
    """Every page of the site by its path, and the files that belong to them."""
    found: dict[str, str | bytes] = dict(sources.pages())
    measured, summaries = figures.measurements(registry.operations(), KEPT / "errors"), read_summaries()
    for page, tables in TABLES.items():
        found[page] = sources.unescape_pipes("\n".join([str(found[page]), *tables(summaries), ""]))
    found |= operations.pages(operations.Material(summaries, measured))
    found |= execute.pages(execute.run_all(KEPT / "notebooks"))
    found["evidence/index.md"] = results.evidence_page(summaries)
    found |= {f"evidence/{path.name}": path.read_bytes() for path in sorted(EVIDENCE.glob("*.jsonl"))}
    found["site.css"] = Path(__file__).with_name("site.css").read_text(encoding="utf-8")
    return found


def build(written: Mapping[str, str | bytes], tree: Navigation, folder: Path = PAGES, site: Path = SITE) -> None:
    """Writes the pages and builds the site. Raises SystemExit for a warning of MkDocs, and for what :mod:`pages.check` finds."""
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    sources.write(folder, written)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    shutil.rmtree(site, ignore_errors=True)
    configuration = load_config(str(CONFIGURATION), docs_dir=str(folder), site_dir=str(site), nav=tree, strict=True)
    configuration.plugins.on_startup(command="build", dirty=False)
    try:
        build_site(configuration)
    except Abort as error:
        raise SystemExit(f"site: {error}") from None
    finally:
        configuration.plugins.on_shutdown()
    if found := list(problems(site)):
        raise SystemExit("site: " + "\nsite: ".join(found[:20]))


def main(arguments: Sequence[str] | None = None) -> None:
    build(collect(), navigation())
    served = f"python3 -m http.server --directory {SITE.relative_to(ROOT)}"
    print(f"wrote {SITE.relative_to(ROOT)}/index.html; `{served}` serves it with its search")
