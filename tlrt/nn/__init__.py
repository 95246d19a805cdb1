"""A thin zoo of layers on a session: explicit parameters, no registration, no hidden modes.

    s = tlrt.Session("cpu", seed=1)
    model = nn.Sequential(nn.Linear(s, 64, 32, name="hidden"), s.relu, nn.Dropout(0.2), nn.Linear(s, 32, 10, name="out"))
    optimizer = tlrt.optim.AdamW(model.parameters(), lr=1e-3)
    loss = s.cross_entropy(model(s.const(x), training=True), labels)

A layer makes its parameters by :meth:`Session.param` under dotted names ("hidden.weight"), which are what a checkpoint holds.
Initial weights come from the session's generator and are the same float32 numbers on every device (:mod:`tlrt.nn.init`).
"""

from typing import TYPE_CHECKING, Any

from tlrt._operations.names import missing_name
from tlrt.nn import init, schedules
from tlrt.nn.attention import KeyValueCache, MultiHeadAttention, TransformerBlock
from tlrt.nn.conv import AdaptiveAvgPool, AvgPool, Conv, ConvTranspose, MaxPool, SmoothMaxPool, Upsample
from tlrt.nn.fno import FNOBlock1d, FNOBlock2d, SpectralConv1d, SpectralConv2d
from tlrt.nn.layer import Dropout, Layer, ModuleList, Sequential
from tlrt.nn.linear import Embedding, LayerNorm, Linear, RMSNorm
from tlrt.nn.mamba import MambaBlock, SelectiveScan
from tlrt.nn.norm import BatchNorm, GroupNorm, InstanceNorm
from tlrt.nn.recurrent import GRU, LSTM

__all__ = ["AdaptiveAvgPool", "AvgPool", "BatchNorm", "Conv", "ConvTranspose", "Dropout", "Embedding", "FNOBlock1d",
           "FNOBlock2d", "GRU", "GroupNorm", "InstanceNorm", "KeyValueCache", "LSTM", "Layer", "LayerNorm", "Linear",
           "MambaBlock", "MaxPool", "ModuleList", "MultiHeadAttention", "RMSNorm", "SelectiveScan", "Sequential",
           "SmoothMaxPool", "SpectralConv1d", "SpectralConv2d", "TransformerBlock", "Upsample", "init", "schedules"]  # fmt: skip


if not TYPE_CHECKING:  # else every name would be one

    def __getattr__(name: str) -> Any:
        raise missing_name("module 'tlrt.nn'", "nn", name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
