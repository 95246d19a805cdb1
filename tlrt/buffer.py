"""Buffer: a flat float32 array on a device."""

from tlrt._binding.handles import Buffer

__all__ = ["Buffer"]
