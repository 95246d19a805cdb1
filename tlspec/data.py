"""The public name of :mod:`tlspec.draw.data`, the values that drawn arrays hold."""

from tlspec.draw.data import DATA as DATA
from tlspec.draw.data import fill as fill
from tlspec.draw.data import generator as generator
