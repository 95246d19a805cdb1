"""Tests of the specification and of the judge. Here is what several of them use."""

from tlspec.judge.report import Finding


def address_in(finding: Finding) -> str:
    """The address of the case that a finding's line repeats."""
    return finding.repeat.rpartition("case=")[2].strip(")'\"")
