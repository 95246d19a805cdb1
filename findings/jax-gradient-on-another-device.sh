#!/bin/sh
# Surprise: in JAX the gradient of an array on one device may be computed, and lie, on another one. An array put on the second device has
# x @ w, x.T, jnp.sum and an FFT there, but jax.grad of their sums lies on the default device, as the gradient of a linear function reads
# nothing but the cotangent, which is committed to no device. 3 * x and x * x have theirs on the second device. On a machine with a
# GPU the gradient of an array on the CPU is so computed by the GPU, and has other bits: that of an inverse FFT had, beside an H200.
#
# Natural guess: a gradient is computed where its array is committed to, as jax.device_put says of what is computed from it.
#
# JAX 0.10.2 with two devices of the CPU; Python 3.11; 2026-11-30.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cd "$folder"
XLA_FLAGS=--xla_force_host_platform_device_count=2 JAX_PLATFORMS=cpu PYTHONPATH=$folder python3 - <<'PROGRAM'
import jax
import jax.numpy as jnp
import numpy as np

first, second = jax.devices()
x = jax.device_put(np.ones((4, 3), np.float32), second)
w = np.ones((3, 2), np.float32)
functions = {
    "x @ w": lambda x: x @ w, "x.T": lambda x: x.T, "jnp.sum": jnp.sum, "rfft": lambda x: jnp.fft.rfft(x).real,
    "3 * x": lambda x: 3 * x, "x * x": lambda x: x * x,
}
found = {}
for name, function in functions.items():
    assert function(x).devices() == {second}
    (found[name],) = jax.grad(lambda x, f=function: jnp.sum(f(x)))(x).devices()
    print(f"{name} of an array on {second}: the gradient is on {found[name]}")
moved = [name for name, place in found.items() if place == first]
assert moved == ["x @ w", "x.T", "jnp.sum", "rfft"], "the behaviour has changed"
PROGRAM
