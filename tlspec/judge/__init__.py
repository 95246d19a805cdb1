"""The judge: checks anybody's kernel against a row, or against a reference in NumPy, and says how much the check could tell."""

from tlspec.judge.checking import check
from tlspec.judge.report import Finding, Report

__all__ = ["Finding", "Report", "check"]
