"""Models in the ONNX format: ``tlrt.onnx.load("model.onnx")`` runs and trains on a session. Needs the package onnx, which
`import tlrt` alone does not."""

from tlrt.onnx.model import Bound, Model, load

__all__ = ["Bound", "Model", "load"]
