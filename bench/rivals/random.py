"""Sizes and rivals of the random family."""

from bench.rivals.table import Rival

SIZES = [{"n": 2**24, "key": 1}, {"n": 2**28, "key": 1}]

RIVALS = {
    "rand_uniform": Rival(
        sizes=SIZES, numpy=lambda np, n: np.random.default_rng(1).random(n, dtype=np.float32),
        torch=lambda torch, n, device: torch.rand(n, device=device),
    ),
    "bernoulli_mask": Rival(sizes=[{**SIZES[0], "keep": 0.9}]),
    "rand_normal": Rival(
        sizes=SIZES, numpy=lambda np, n: np.random.default_rng(1).standard_normal(n, dtype=np.float32),
        torch=lambda torch, n, device: torch.randn(n, device=device),
    ),
}  # fmt: skip
