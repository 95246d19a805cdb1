"""Why mutants that survive do: a mutant as :attr:`audit.mutation.random_mutants.Mutant.key` names it -> the reason. A reason that
begins with "equivalent: " argues that no caller can see the change; the score counts such a mutant as equivalent."""

REASONS: dict[str, str] = {
    "tlrt/_binding/call.py: if not isinstance(out, (tuple, list)): -> if not isinstance(out, ( list,tuple)):":
        "equivalent: a tuple of types has no order",
    # python
    "tlrt/fast_kernels.py: return True -> return None":
        "equivalent: _is_tape_operation is private, and its two callers use it as the condition of an `if`",
    "tlrt/_capture/record.py: empty.append([argument[i] == ffi.NULL for i in range(len(argument))]) -> empty.append([argument[i]"
    " <= ffi.NULL for i in range(len(argument))])":
        "equivalent: cffi compares pointers as unsigned addresses, of which none is below NULL",
    "native/src/cuda/linalg/wgmma.cuh: __global__ void __launch_bounds__(tl_wgmma::THREADS, 1) -> __global__ void"
    " __launch_bounds__(tl_wgmma::THREADS, (1-1))":
        "equivalent: how many blocks the compiler plans for a multiprocessor changes registers, not results",
    "native/src/cuda/norm/columns.cu: : 0; -> : (0+1);":
        "the choice for a GPU with less shared memory than any that the library is built for",
    "native/src/cuda/attention/forward.cu: TL_TRY(status); -> /*TL_TRY(status);*/":
        "the status of a launch, which fails only where the GPU is lost",
    "native/src/cuda/spectral/plan.cu: if (result != CUFFT_SUCCESS) return result; -> if (0==1) return result;":
        "cufftCreate fails only where host memory ends, which no test brings about within cuFFT",
    # specification
    "tlspec/ops/shape.py: def reduce_from_broadcast_vjp(g, in_dims, out_dims, axis_map): -> def reduce_from_broadcast_vjp"
    "(g, in_dims , axis_map, out_dims):":
        "equivalent: nothing but tlspec.bounds.call_reference calls it, which gives what is no array by name",
    "tlspec/ops/shape.py: def transpose3d_cab_vjp(g): -> def transpose0d_cab_vjp(g):":
        "equivalent: the row holds the function, and nothing reads the name that the module has for it",
    "tlspec/ops/shape.py: \"both\": lambda n, m: n > 0 and m > 0, -> \"both\": lambda n, m: n != 0 and m > 0,":
        "equivalent: n is the length of a vector, which is 0 or more",
    "tlspec/ops/spectral.py: S.imag[..., n // 2] = 0 -> S.imag[..., n // 2] = (0-1)":
        "equivalent: numpy.fft.irfft reads no imaginary part of bin n/2, and -1 is as finite as 0",
}  # fmt: skip
