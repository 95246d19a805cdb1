"""The public name of :mod:`tlspec.draw.cases`."""

from tlspec.draw.cases import *  # noqa: F403
