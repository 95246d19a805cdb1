"""Buffer: a flat float32 array on a device; IndexBuffer: one of uint32 indices."""

from tlrt._binding.handles import Buffer, IndexBuffer

__all__ = ["Buffer", "IndexBuffer"]
