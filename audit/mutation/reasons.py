"""Why mutants that survive do: a mutant as :attr:`audit.mutation.random_mutants.Mutant.key` names it -> the reason. A reason that
begins with "equivalent: " argues that no caller can see the change; the score counts such a mutant as equivalent."""

REASONS: dict[str, str] = {
    "tlspec/ops/scan.py: def _constant_bound(A, B, x, h0): -> def _constant_bound(A , x, B, h0):":
        "equivalent: a bound is called with its arguments by name (tlspec.bounds.call_named)",
    "tlrt/_binding/call.py: if not isinstance(out, (tuple, list)): -> if not isinstance(out, ( list,tuple)):":
        "equivalent: a tuple of types has no order",
}  # fmt: skip
