"""Why mutants that survive do: a mutant as :attr:`audit.mutation.random_mutants.Mutant.key` names it -> the reason. A reason that
begins with "equivalent: " argues that no caller can see the change; the score counts such a mutant as equivalent."""

REASONS: dict[str, str] = {}
