#!/bin/sh
# Surprise: with jax_enable_x64 an array of int64 indices holds 2^32, and jnp.take(mode="fill") with it gives element 0 instead of the
# fill value; take_along_axis and x.at[...].get, .add and .set with mode "fill" or "drop" read and write elements 0, 1, ... for 2^32,
# 2^32 + 1, ..., and take_along_axis the last one for 2^32 - 1. Indices are cut to 32 bits before they are compared with the length.
#
# Natural guess: the modes "fill" and "drop" treat every index out of range as out of range, as they do for int32 indices, and as
# the types were made wide for. NumPy raises IndexError.
#
# JAX 0.10.2, CPU, with and without jit; Python 3.11; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cd "$folder"
JAX_PLATFORMS=cpu PYTHONPATH=$folder python3 - <<'PROGRAM'
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
x = jnp.array([10.0, 20.0, 30.0])
calls = {
    "take": lambda i: jnp.take(x, i, mode="fill", fill_value=-1),
    "take_along_axis": lambda i: jnp.take_along_axis(x, i, axis=0, mode="fill", fill_value=-1),
    "at[i].get": lambda i: x.at[i].get(mode="fill", fill_value=-1),
    "at[i].add": lambda i: x.at[i].add(1.0, mode="drop"),
}
found = {}
for index in (3, -4, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33 + 2):
    i = jnp.array([index])
    assert i.dtype == jnp.int64 and int(i[0]) == index
    found[index] = {name: np.asarray(call(i)).tolist() for name, call in calls.items()}
    assert found[index] == {name: np.asarray(jax.jit(call)(i)).tolist() for name, call in calls.items()}
    print(f"{index:11}", found[index])
assert found[3] == found[-4] == {"take": [-1.0], "take_along_axis": [-1.0], "at[i].get": [-1.0], "at[i].add": [10.0, 20.0, 30.0]}
assert found[2**32]["take"] == [10.0] and found[2**32 + 1]["at[i].get"] == [20.0] and found[2**33 + 2]["take_along_axis"] == [30.0]
assert found[2**32]["at[i].add"] == [11.0, 20.0, 30.0], "2^32 is out of range now"
PROGRAM
