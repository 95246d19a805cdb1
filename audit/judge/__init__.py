"""Campaigns that measure the judge itself: defects that it must catch, right kernels that it must not fail."""
