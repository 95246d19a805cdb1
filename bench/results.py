"""``python -m bench.results``: writes docs/results.md, docs/trust.md, docs/speed.svg and the README's results from the files
under evidence (and docs/trust.md from the registry as well).

``--check`` compares instead. Documents quote measured figures through this program alone, so none stands without its file.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from audit import evidence
from audit.environment import EVIDENCE, ROOT, short_commit
from audit.markdown import format_figure, table
from bench import trust
from bench.speed_chart import chart_figures, draw_chart, family_ratios, read_figures
from tlrt.verify.documents import read_document
from tlrt.verify.report import count_entries
from tlspec.registry import MATH

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
CHART = "docs/speed.svg"


class Run(NamedTuple):
    """A run by its evidence file: what it ran on, the peers its ratios are against, and the file of its examples or ""."""

    file: str
    title: str
    peers: tuple[str, ...]
    examples: str


RUNS = (
    Run("h200.jsonl", "H200", ("torch",), "examples-h200.jsonl"),
    Run("h200-added.jsonl", "H200, operations added since", ("torch",), ""),
    Run("modes-h200.jsonl", "H200, in both modes", ("torch",), ""),
    Run("indices-h200.jsonl", "H200, indices on the device", ("torch",), ""),
    Run("attention-h200.jsonl", "H200, attention of few queries", ("torch",), ""),
    Run("attention-h100.jsonl", "H100, attention", ("torch",), ""),
    Run("modes-cpu.jsonl", "CPU, in both modes", ("torch",), ""),
    Run("cpu.jsonl", "CPU", ("numpy", "torch"), "examples-cpu.jsonl"),
)
#: drawn shapes with the kernels of GPUs before compute capability 9.0
DRAWN_OLDER = "drawn-compute_80.jsonl"
#: runs of drawn shapes, each a seed
DRAWN = ("drawn-h200-1.jsonl", "drawn-h200-2.jsonl", "drawn-h100.jsonl", DRAWN_OLDER, "drawn-cpu.jsonl")
#: runs of the fixed rows beside those of earlier checkouts
BESIDE_RUNS = ("beside-h200.jsonl", "beside-cpu.jsonl")
#: runs of training steps alone
STEP_RUNS = ("steps-h200.jsonl", "steps-cpu.jsonl")
NAMES = {"torch": "PyTorch", "numpy": "NumPy", "fast": "the fast mode"}


def load(name: str) -> dict[str, Any] | None:
    """An evidence file; a plain benchmark file is seen as a run of the parts `bench` and `growth`. The rows of reproducible
    contexts are a part of their own, `reproducible`; a row that names no mode is of the fast one."""
    path = EVIDENCE / name
    if not path.exists():
        return None
    data: dict[str, Any] = read_document(path)
    if "bench" not in data:
        data = {"bench": data, **{k: data.get(k) for k in ("growth", "training_steps", "date", "commit")}}
    modes: dict[str, list[Any]] = {math: [] for math in MATH}
    for row in data["bench"]["rows"]:
        modes[row.get("math", "fast")].append(row)
    return {**data, "bench": {**data["bench"], "rows": modes["fast"]}, "reproducible": modes["reproducible"]}


def origin(name: str, where: str, date: str, commit: str | None) -> str:
    """Where and when an evidence file was made, and its link from docs/."""
    made = f", commit {short_commit(commit)}" if commit else ""
    return f"{where}; {date[:10]}{made} ([{name}](../evidence/{name}))"


#: what each example is judged by, and what to compare it with
FIGURES: Mapping[str, Sequence[tuple[str, str]]] = {
    "digits": (("test_accuracy", "accuracy on unseen images"), ("test_loss", "loss")),
    "autoencoder": (
        ("test_mse", "mean squared error"), ("principal_components_mse", "8 principal components"),
        ("mean_image_mse", "the mean image"),
    ),
    "char_gpt": (("test_loss", "nats per unseen character"), ("unigram_loss", "frequencies of characters")),
    "mamba": (
        ("test_loss", "nats per unseen character"), ("test_accuracy", "accuracy"),
        ("unigram_loss", "frequencies of characters"),
    ),
    "fno_burgers": (
        ("relative_l2_error", "relative L2 error"), ("relative_l2_error_twice_the_grid", "on twice the grid"),
        ("relative_l2_error_of_the_identity", "of the initial function"),
    ),
}  # fmt: skip


def full_table(rows: Sequence[Mapping[str, Any]], peers: tuple[str, ...]) -> list[str]:
    names = ["operation", "size", "ms", "share of floor", "rms error"]
    for peer in peers:
        names += [f"times faster than {NAMES[peer]}", f"{NAMES[peer]}'s error"]
    lines = []
    for row in rows:
        share = f"{row['floor_share']:.2f}{'*' if row['in_cache'] else ''}" if row["floor_ms"] else ""
        cells = [row["op"], row["size"], format_figure(row["ours_ms"]), share]
        cells.append("" if row["error"] is None else f"{row['error']:.1e}")
        random = evidence.family(row["op"]) == "random"  # others draw other numbers
        for peer in peers:
            other = row["peers"].get(peer)
            cells += ["", ""] if other is None else [
                format_figure(other["ratio"]), "" if other["error"] is None or random else f"{other['error']:.1e}",
            ]  # fmt: skip
        lines.append(cells)
    return table(names, lines)


def families_table(rows: Sequence[Mapping[str, Any]], peer: str) -> list[str]:
    """One line per family: how many rows, the median ratio, and the worst and best with their operations."""
    lines = []
    for family, ratios in family_ratios(rows, peer).items():
        median = statistics.median(r[0] for r in ratios)
        ends = [f"{format_figure(ratio)} ({op}, {size})" for ratio, op, size in (ratios[0], ratios[-1])]
        lines.append([family, str(len(ratios)), format_figure(median), *ends])
    return table(("family", "rows", f"times faster than {NAMES[peer]}: median", "worst", "best"), lines)


def verified_sentence(run: dict[str, Any]) -> str:
    report = run.get("verify")
    if not report:
        return ""
    results = report["results"]
    cases = sum(r["cases"] for r in results)
    bad = sum(r["verdict"] != "pass" for r in results)
    same = sum(r["identical"] is True for r in results)
    checks = "; ".join(map(": ".join, trust.sanitizer_runs(run.get("sanitizer", {}))))
    return (
        f"{count_entries((r['entry'], r['device']) for r in results)} verified in {cases} cases, {bad} failed; {same} of them "
        f"bit-identical to the CPU path. compute-sanitizer: {checks}."
    )


#: how the values of a growth entry are written: their unit and the factor that gives it
UNITS = {"time": ("ms", 1.0), "memory": ("MiB", 2.0**-20), "error": ("u", 1.0)}


def growth_table(report: dict[str, Any]) -> list[str]:
    """What :mod:`bench.growth` measured: every value, the figure drawn from them and its limit."""
    lines = []
    for e in report["entries"]:
        unit, factor = UNITS[e["what"]]
        values = f"{', '.join(format_figure(v * factor) for v in e['values'])} {unit}"
        sizes = f"{e['size']} = {', '.join(map(str, e['sizes']))}" + (f"; {e['detail']}" if e["detail"] else "")
        limit = "" if e["limit"] is None else f"≤ {format_figure(e['limit'])}"
        verdict = "" if e["limit"] is None else "kept" if e["ok"] else "**missed**"
        name = e["name"] if e["what"] in e["name"] else f"{e['name']}: {e['what']}"
        lines.append([name, sizes, values, f"{e['figure_is']}: {format_figure(e['figure'])}", limit, verdict])
    return table(("what", "sizes", "values", "figure", "limit", ""), lines)


def headline(name: str, run: dict[str, Any]) -> str:
    bench = run["bench"]
    versions = f"NumPy {bench['numpy']}" + (f", PyTorch {bench['torch']}" if bench["torch"] else "")
    return origin(name, f"{bench['device']}; {versions}", run["date"], run.get("commit"))


def steps_table(report: Mapping[str, Any]) -> list[str]:
    """Every step of :mod:`bench.steps`: our time, PyTorch's eager and compiled, and how many times faster."""
    columns = {"ours_ms": "ms", "torch_ms": "PyTorch, ms", "ratio": "times faster than PyTorch"}
    if any(r.get("compiled_ms") is not None for r in report["rows"]):
        columns |= {"compiled_ms": "torch.compile, ms", "compiled_ratio": "times faster than torch.compile"}
    if any(r.get("device_ms") is not None for r in report["rows"]):
        columns |= {"device_ms": "its kernels, ms", "device_ratio": "step over its kernels"}
    lines = []
    for r in report["rows"]:
        times = [format_figure(x) if (x := r.get(k)) is not None else "" for k in columns]
        lines.append([r["step"], r["size"], r.get("math", "fast"), *times, str(r["driver_allocations"])])
    return table(("step", "size", "mode", *columns.values(), "driver allocations"), lines)


def steps_sentence(report: Mapping[str, Any]) -> str:
    """The training steps in one sentence."""
    full = [r for r in report["rows"] if r.get("losses") and r.get("ratio") is not None]
    modes = len({r.get("math", "fast") for r in full}) > 1
    said = ", ".join(
        f"{r['step']} ({r['size']}{', ' + r['math'] if modes else ''}) {format_figure(r['ratio'])}" for r in full
    )
    return f"Training steps, times faster than PyTorch eager: {said}"


def examples_table(document: Mapping[str, Any]) -> list[str]:
    """What the examples reached, and char-GPT run twice, resumed, and beside PyTorch."""
    lines = []
    for name, r in document["examples"].items():
        said = "; ".join(f"{what} {r[key]:.4g}" for key, what in FIGURES[name])
        size, times = f"{r['parameters']:,}".replace(",", " "), (r["wall_seconds"], r["steps_per_second"])
        lines.append([name, size, str(r["steps"]), said, *map(format_figure, times)])
    out = table(("example", "parameters", "steps", "what it reached", "s", "steps/s"), lines)
    again = document["repeated"]
    same = "left the same checkpoint, byte for byte" if again["bit_identical"] else "left **different** checkpoints"
    out += ["", f"char_gpt over {again['steps']} steps, run twice and once stopped half-way and resumed, {same}."]
    if peer := document["peer"]:
        text = (
            f"char_gpt without dropout beside PyTorch {peer['torch']}, from the same weights on the same batches: the loss at"
            f" each step, at most {peer['largest_difference']:.1e} apart over {peer['steps']} steps;"
            f" {format_figure(peer['steps_per_second'][0])} and {format_figure(peer['steps_per_second'][1])} steps/s."
        )
        steps, ours, theirs = zip(*peer["curve"], strict=True)
        curves = [(name, *(f"{x:.6f}" for x in curve)) for name, curve in (("here", ours), ("PyTorch", theirs))]
        out += ["", text, "", *table(("step", *map(str, steps)), curves)]
    return out


GROWTH = (
    "A slope is that of the least-squares line through the logarithms of time or peak memory. Errors are those of N(0, 1) data",
    "against NumPy's float64 transform, relative to the rms of the result, in units of u = 2⁻²⁴; the levels of a length with a",
    "large prime factor are those of Bluestein's three transforms. The limits' reasons stand in `bench/growth.py`.",
)
STEPS = (
    "One step from Python: forward, backward, optimiser, a batch copied to the device. The rows of one operation are the bare",
    "kernel, the same on the tape, and on the session.",
)
STEPS_ALONE = (
    "The steps of `python -m bench.steps`, on the GPU with `--compile`. The last columns there set a captured step beside the",
    "sum of what its kernels, copies and fills take on the GPU. The small kernels of the MLP begin before the ones ahead of",
    "them end, so that their sum is longer than the step.",
)
DRAWN_SHAPES = (
    "Shapes that `python -m bench --drawn N --seed S` draws for each operation over its whole range. A figure is the time of",
    "PyTorch over ours, in one run; the file has every shape, and `--drawn 1 --seed S --first I` repeats row I. Most of those",
    "that are slower than PyTorch's on a GPU are of these kinds; the others still ask for a reason:",
    "",
    "- The sum of a row that many indices name is a chain in the order of the indices, on every device: an addition takes four",
    "  cycles. PyTorch adds in any order, by atomics. Long lists are dealt by row first, which moves 16 bytes more for each of",
    "  their indices.",
    "- `pow`, `pow_scalar` and some others are evaluated in float64 and rounded once, at the rate of the float64 units;",
    "  `gelu_erf`, `gelu_bwd` and `log1p` issue more instructions than memory leaves time for; `rand_normal` draws each number",
    "  from a counter of its own.",
    "- `where` reads a condition of four bytes, PyTorch's one of a byte.",
    "- Folds of a few long rows (`var`, `prod`, `amax` over several axes) are in float64, or have as few blocks as rows.",
    "- Attention of short sequences has a block for each of them: fewer than a GPU has multiprocessors leave some of these idle.",
    "- Below some 10 us it is the launch, from Python, that is timed on both sides.",
)

REPRODUCIBLE = (
    "Every operation that has the same bits on all devices in this mode alone, on the inputs of its row above. The fast mode was",
    "timed in the same run, and so was each peer, once. Where this mode is slower than PyTorch, the reason is one of these:",
    "",
    "- A dense convolution with a kernel of 3 x 3 costs 9 products for each pair of channels here, as it is defined; cuDNN's",
    "  algorithm of Winograd takes fewer, and rounds in between.",
    "- The gradient of attention is five products, all of them in float64, at the rate of the GPU's float64 tensor cores.",
    "- The gradient of a convolution's weights is one chain over the batch and the positions of the output, in segments whose",
    "  length depends on that number alone. Few weights are few chains, so a layer of few channels leaves most of the GPU idle.",
    "- Long Fourier transforms are bound by the instructions that they issue, not by memory: products and sums round apart,",
    "  and roots between passes are products in float64. A prime length takes three transforms of twice its length.",
    "- `dgemm` is one chain for each segment of 2048 terms, so small products leave most of the GPU idle; cuBLAS splits them.",
    "",
    "On a CPU a product costs twice the time of the fast mode, as a vector holds half as many numbers of float64. As families",
    "have a median below 1 on a GPU, contexts compute in the fast mode by default.",
)


BESIDE = (
    "The sizes above, timed by `python -m bench.beside` in this checkout and in earlier ones, in alternation: whether a row has",
    "become slower since it was first recorded. A ratio is the median, over the turns, of the earlier checkout's time over this",
    "one's. Rows that seem to have fallen are timed again in new processes, and the fastest turn of each checkout counts.",
)


def beside_section(name: str, found: Mapping[str, Any]) -> list[str]:
    """The verdict of a run beside earlier checkouts, and its rows that gained least."""
    rows = sorted(found["rows"], key=lambda row: row["ratio"])
    ratios = [row["ratio"] for row in rows]
    earlier = " and ".join(short_commit(revision) for revision in found["beside"])
    fallen = sum(ratio < found["limit"] for ratio in ratios)
    lines = [
        [r["op"], r["size"], format_figure(r["ms"]), format_figure(r["before_ms"]), f"{r['ratio']:.3f}"]
        for r in rows[:10]
    ]
    median = statistics.median(ratios)
    return [
        origin(name, f"{found['device']}, beside {earlier}", found["date"], found["commit"]) + ".",
        "",
        f"Of {len(rows)} rows {fallen} are below {found['limit']:g}; the median is {median:.2f} times faster. The least:",
        "",
        *table(("operation", "size", "ms", "before", "times faster"), lines),
    ]


def drawn_table(found: Mapping[str, Any]) -> list[str]:
    """The families of a run of drawn shapes."""
    head = ("Family", "Shapes", "Median", "5th percentile", "Least", "Below 1")
    rows = [
        (
            s["family"],
            str(s["shapes"]),
            *(format_figure(s[k]) for k in ("median", "percentile_5", "least")),
            f"{100 * s['share_below_1']:.0f} %",
        )
        for s in found["summary"]
    ]
    return table(head, rows)


def older_section() -> list[str]:
    """What TRUST_BOUNDARIES.md says of GPUs that have other kernels than those that were at hand."""
    if not (EVIDENCE / DRAWN_OLDER).exists():
        return []
    found = read_document(EVIDENCE / DRAWN_OLDER)
    gpu, checks, total = found["device"].split(",")[0], found["verified"], found["summary"][-1]
    median, low = (format_figure(total[k]) for k in ("median", "percentile_5"))
    return [
        "- **GPUs before compute capability 9.0**: none was tried. The library built for compute_80 alone has the kernels that",
        f"  they run, and was tried on an {gpu}: {checks['cases']} drawn cases, verdict {checks['verdict']}. Over",
        f"  {total['shapes']} drawn shapes it is {median} times as fast as PyTorch in the median, {low} at the 5th percentile",
        f"  ([{DRAWN_OLDER}](evidence/{DRAWN_OLDER})). That shows the values of those kernels, and that none of them",
        "  depends on what only Hopper has. It does not show the machine code that ptxas makes for another chip, nor what is",
        "  refused where a block has less shared memory, nor times there.",
    ]


def growth_sentence(report: dict[str, Any]) -> str:
    held = [e["ok"] for e in report["entries"] if e["limit"] is not None]
    return f"Growth of cost and of the transforms' error: {sum(held)} of {len(held)} figures within their limits."


INTRODUCTION = (
    "Written by `python -m bench.results` from the files under `evidence`. A ratio compares two medians of one run.",
    "Floor: the larger of bytes over the measured copy rate and operations over the peak rate. `*`: operands fit the",
    "GPU's L2 cache. Gather and scatter take their indices from the host on every call, but in tables that say otherwise;",
    "PyTorch's lie on the device. What a model keeps between calls (tables of angles, what a forward pass saves for its",
    "gradient) PyTorch is not charged for.",
    "PyTorch has no scan of its own, and a Python loop over time would be no peer: those rows stand beside the floor alone.",
)


def results_page() -> str:
    """docs/results.md."""
    page = ["# Results", "", *INTRODUCTION]
    for run in RUNS:
        found = load(run.file)
        if found is None:
            continue
        page += ["", f"## {run.title}", "", headline(run.file, found), ""]
        if text := verified_sentence(found):
            page += [text, ""]
        for peer in run.peers:
            page += [
                f"### By family, beside {NAMES[peer]}: {run.title}",
                "",
                *families_table(found["bench"]["rows"], peer),
                "",
            ]
        page += [f"### Every row: {run.title}", "", *full_table(found["bench"]["rows"], run.peers)]
        if rows := found["reproducible"]:
            page += ["", f"### In reproducible contexts: {run.title}", "", *REPRODUCIBLE, ""]
            page += [*families_table(rows, "torch"), "", *full_table(rows, ("fast", *run.peers))]
        if growth := found.get("growth"):
            page += ["", f"### Cost growth and accuracy: {run.title}", "", *GROWTH, ""]
            page += [growth_sentence(growth), "", *growth_table(growth)]
        if steps := found.get("training_steps"):
            page += ["", f"### Training steps: {run.title}", "", *STEPS, ""]
            page += [f"{steps_sentence(steps)}.", "", *steps_table(steps)]
        if run.examples and (EVIDENCE / run.examples).exists():
            examples = read_document(EVIDENCE / run.examples)
            where = origin(
                run.examples, "; ".join(examples["devices"].values()), examples["started"], examples["commit"]
            )
            page += ["", f"### Examples: {run.title}", "", where, "", *examples_table(examples)]
    if runs := [(name, read_document(EVIDENCE / name)) for name in STEP_RUNS if (EVIDENCE / name).exists()]:
        page += ["", "## Training steps, beside torch.compile and PyTorch eager", "", *STEPS_ALONE]
        for name, steps in runs:
            page += ["", origin(name, steps["device"], steps["date"], steps["commit"]) + ".", "", *steps_table(steps)]
    if earlier := [(name, read_document(EVIDENCE / name)) for name in BESIDE_RUNS if (EVIDENCE / name).exists()]:
        page += ["", "## Fixed rows, beside earlier checkouts", "", *BESIDE]
        for name, found in earlier:
            page += ["", *beside_section(name, found)]
    if drawn := [(name, read_document(EVIDENCE / name)) for name in DRAWN if (EVIDENCE / name).exists()]:
        page += ["", "## Drawn shapes, beside PyTorch", "", *DRAWN_SHAPES]
        for name, found in drawn:
            older = ", the library built for compute_80" if name == DRAWN_OLDER else ""
            where = origin(name, found["device"] + older, found["date"], found["commit"])
            alone = len(found.get("without_peer", ()))
            beside = f"; of {alone} more shapes a call of PyTorch's takes too long to be timed" * bool(alone)
            page += ["", f"{where}, seed {found['seed']}{beside}.", ""]
            page += drawn_table(found)
    return "\n".join(page) + "\n"


def speed_figures() -> dict[str, Any] | None:
    """What the README's chart shows; None without its run."""
    run = load(RUNS[0].file)
    if run is None:
        return None
    return chart_figures(
        run["bench"]["rows"], f"Times faster than PyTorch {run['bench']['torch']} on one {RUNS[0].title}"
    )


def readme_section() -> list[str]:
    """The README's results: the chart and what it shows."""
    run, figures = load(RUNS[0].file), speed_figures()
    if run is None or figures is None:
        return ["No benchmark has been recorded."]
    ratios = [ratio for rows in family_ratios(run["bench"]["rows"], "torch").values() for ratio, *_ in rows]
    faster = sum(x >= 1 for x in ratios)
    results = run["verify"]["results"]
    cases, failed = sum(r["cases"] for r in results), sum(r["verdict"] != "pass" for r in results)
    return [
        f"![{figures['title']}: median, worst and best row of each family]({CHART})",
        "",
        f"A dot is the median over a family's rows, the bar reaches from its worst to its best row. Of {len(ratios)} rows,",
        f"{faster} are at least as fast as PyTorch's. In the same run {cases} drawn cases were checked on the CPU and the GPU;",
        f"{failed} failed. [docs/results.md](docs/results.md) has every row, slower ones included, and whole training steps.",
    ]


def between_markers(name: str, section: Sequence[str]) -> str:
    """A document written by hand, with a section between its markers."""
    before, _, rest = (ROOT / name).read_text(encoding="utf-8").partition(BEGIN)
    return "\n".join([before + BEGIN, *section, END + rest.partition(END)[2]])


def documents() -> dict[str, str]:
    """The generated texts by file: two pages, and two documents with what stands between their markers."""
    sources = trust.committed_sources()
    return {
        "docs/trust.md": trust.trust_page(sources),
        "docs/results.md": results_page(),
        "README.md": between_markers("README.md", readme_section()),
        "TRUST_BOUNDARIES.md": between_markers(
            "TRUST_BOUNDARIES.md", [*trust.mutants_section(sources), *older_section()]
        ),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.results", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args(argv)
    stale = {n: t for n, t in documents().items() if not (ROOT / n).exists() or (ROOT / n).read_text("utf-8") != t}
    for name, text in stale.items():
        if not args.check:
            (ROOT / name).write_text(text, encoding="utf-8")
    names, figures = list(stale), speed_figures()
    if figures is not None and read_figures(ROOT / CHART) != figures:
        names.append(CHART)
        if not args.check:
            draw_chart(ROOT / CHART, figures)
    for name in names:
        print(("stale: " if args.check else "wrote: ") + name)
    return int(args.check and bool(names))


if __name__ == "__main__":
    sys.exit(main())
