/* Real Fourier transforms on CUDA; spectral/select.h says which algorithm computes them. */
#include "cuda/spectral/spectral.cuh"
#include "generated/spectral.h"

namespace {

/* The factors are those of bins 0 and n/2, and of the others. */
int32_t transform(tl_context *ctx, const float *from, float *to, int64_t batch, int64_t n, bool inverse, double edge,
                  double inner)
{
    if (batch == 0) return TORCHLEAN_OK;
    const int64_t bins = n / 2 + 1;
    tl_spectral_device device;
    TL_TRY(tl_spectral_device_of(ctx, &device));
    const tl_own_real_rows rows = {from, to, batch, n, bins, (float)edge, (float)inner};
    const bool plain = !inverse && edge == 1.0 && inner == 1.0;
    switch (tl_select_real(device, batch, n, plain, tl_is_reproducible(ctx))) {
    case TL_REAL_OWN: return tl_own_real(ctx, device, rows, inverse);
    case TL_REAL_PACKED: return tl_packed_real(ctx, rows, inverse);
    default: break;
    }
    const auto real = const_cast<float *>(inverse ? to : from), spec = const_cast<float *>(inverse ? from : to);
    const tl_half_spectra spectra = {spec, spec + 1, 2 * bins, 2, bins, rows.edge, rows.inner};
    return inverse ? tl_library_inverse(ctx, n, batch, spectra, tl_real_rows{real, n, 1})
                   : tl_library_forward(ctx, n, batch, tl_real_rows{real, n, 1}, spectra);
}

} /* namespace */

extern "C" int32_t tl_cuda_rfft1d_packed(tl_context *ctx, const float *x, int64_t batch, int64_t n, float *spec)
{
    return transform(ctx, x, spec, batch, n, false, 1.0, 1.0);
}

extern "C" int32_t tl_cuda_rfft1d_packed_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, float *gx)
{
    return transform(ctx, g, gx, batch, n, true, 1.0, 0.5);
}

extern "C" int32_t tl_cuda_irfft1d_packed(tl_context *ctx, const float *spec, int64_t batch, int64_t n, float *x)
{
    return transform(ctx, spec, x, batch, n, true, 1.0 / (double)n, 1.0 / (double)n);
}

extern "C" int32_t tl_cuda_irfft1d_packed_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, float *gspec)
{
    return transform(ctx, g, gspec, batch, n, false, 1.0 / (double)n, 2.0 / (double)n);
}
