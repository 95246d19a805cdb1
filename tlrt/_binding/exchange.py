"""Memory borrowed from other libraries, by DLPack's protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tlrt._binding import capsules
from tlrt._binding.convert import type_name
from tlrt._binding.handles import Buffer, Device, IndexBuffer, _find_device, new, own
from tlrt._binding.library import complete_call, failure, load
from tlrt.errors import AliasError, ArgumentError, ArgumentTypeError, DeviceMismatchError, ShapeError, refusal


def borrow(array: Any, device: Device | str | None, copy: bool | None) -> Buffer:
    """A buffer over the memory of an object with ``__dlpack__``; see :func:`tlrt.from_dlpack`."""
    op = "from_dlpack"
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        raise refusal(
            ArgumentTypeError, op, "array", type_name(array), "an object with __dlpack__ and __dlpack_device__"
        )
    kind, number = map(int, array.__dlpack_device__())
    names = {capsules.CPU: "cpu", capsules.CUDA_HOST: "cpu", capsules.CUDA: f"cuda:{number}"}
    if kind not in names:
        raise refusal(
            DeviceMismatchError,
            op,
            "array",
            f"one on DLPack's device ({kind}, {number})",
            "one on the CPU or a CUDA device",
        )
    target = _find_device(names[kind] if device is None else device, op)
    if target.name != names[kind]:
        raise refusal(
            DeviceMismatchError, op, "device", target.name, f"{names[kind]}, where the array is, or move it there first"
        )
    for observer in target._observers:
        observer.before_host_access(target, op)
    if copy is not True:
        try:
            return _borrow(_as_stored(array, copy), target, _is_writable(array))
        except (AliasError, ArgumentError, ShapeError, BufferError):
            if copy is False:
                raise
    with _borrow(_packed(array), target) as borrowed:
        return borrowed.copy()


def _is_writable(array: Any) -> bool:
    """Whether arrays of its library may be written to, unless their tensors say otherwise. Those of others are taken for
    immutable, as JAX's are: tensors without a version cannot say it."""
    return any(k.__module__.partition(".")[0] in ("numpy", "torch", "cupy") for k in type(array).__mro__)


def _as_stored(array: Any, copy: bool | None) -> Any:
    """The array, or a copy where PyTorch has set its bit that says the memory holds the numbers with the other sign."""
    if not (hasattr(array, "is_neg") and array.is_neg()):
        return array
    if copy is False:
        got, expected = "a tensor with the negative bit set", "a copy of it, as resolve_neg() makes"
        raise refusal(ArgumentError, "from_dlpack", "array", got, expected)
    return array.resolve_neg()


def _packed(array: Any) -> Any:
    """A copy of the array by its own library, row-major and writable; float16 and bfloat16 become float32, which holds them."""
    is_narrow = str(getattr(array, "dtype", "")).rpartition(".")[2] in ("float16", "bfloat16")
    if hasattr(array, "contiguous"):  # PyTorch's
        array = _as_stored(array, True)
        return array.float().contiguous() if is_narrow else array.contiguous().clone()
    array = array.astype("float32") if is_narrow else array
    return array.copy() if hasattr(array, "copy") else array


def _borrow(array: Any, device: Device, is_writable: bool = True) -> Buffer:
    capsule = _capsule(array, device.stream if device.is_cuda else None)
    address, versioned, unsigned = capsules.open_capsule(capsule)
    if not (is_writable or versioned):
        got, expected = f"{type_name(array)}, whose memory may be read-only", "a copy of it"
        raise refusal(ArgumentError, "from_dlpack", "array", got, expected)
    return borrow_tensor(address, versioned, unsigned, device, lambda: capsules.empty_capsule(capsule, versioned))


def borrow_tensor(
    address: int, versioned: bool, unsigned: bool, device: Device, taken: Callable[[], None] = lambda: None
) -> Buffer:
    """A buffer over the tensor of DLPack's that lies at an address; `taken` is called when the tensor is the library's to
    delete."""
    kind = IndexBuffer if unsigned else Buffer
    library = load()
    function = library.lib.torchlean_cuda_buffer_borrow
    slot = new(library.ffi.typeof("torchlean_buffer **"))
    try:
        status = complete_call(function, device._handle, library.ffi.cast("void *", address), int(versioned), slot)
        if not status:
            taken()
            return kind(own(slot[0], library.lib.torchlean_cuda_buffer_release), device)
    except BaseException:
        library.lib.torchlean_cuda_buffer_release(slot[0])
        raise
    raise failure(status, "from_dlpack", {"tensor": "array"})


def lend_to(buffer: Buffer, device: Device) -> tuple[Buffer, int]:
    """A buffer of another context on the same CPU or GPU over this one's memory, and the address of that. The caller orders the
    work of the two; the memory is the lender's to reuse once the borrower's work with it is done."""
    tensor, address = capsules.lent_tensor(buffer, "lend_to")
    try:
        return borrow_tensor(tensor, False, False, device), address
    except BaseException:
        capsules.delete_tensor(tensor)
        raise


def _capsule(array: Any, stream: int | None) -> Any:
    """What the object lends, with a version where it knows of them."""
    asked: dict[str, Any] = {} if stream is None else {"stream": stream}
    try:
        return array.__dlpack__(max_version=(1, 0), **asked)
    except TypeError:
        return array.__dlpack__(**asked)
