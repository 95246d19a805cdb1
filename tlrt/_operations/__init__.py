"""The operations of tapes and sessions, once for both, by family."""

from tlrt._operations.attention import AttentionOperations
from tlrt._operations.base import Ref
from tlrt._operations.conv import ConvOperations
from tlrt._operations.elementwise import ElementwiseOperations
from tlrt._operations.index import IndexOperations
from tlrt._operations.linalg import LinalgOperations
from tlrt._operations.loss import LossOperations
from tlrt._operations.norm import NormOperations
from tlrt._operations.pool import PoolOperations
from tlrt._operations.reduce import ReduceOperations
from tlrt._operations.spectral import SpectralOperations

__all__ = ["Operations"]


class Operations(
    AttentionOperations[Ref],
    LinalgOperations[Ref],
    NormOperations[Ref],
    ElementwiseOperations[Ref],
    IndexOperations[Ref],
    ReduceOperations[Ref],
    LossOperations[Ref],
    ConvOperations[Ref],
    PoolOperations[Ref],
    SpectralOperations[Ref],
):
    """All operations on references to values."""
