"""Which algorithm CUDA's convolutions take for layers of models (native/src/cuda/conv/select.h): a pure function of shape,
mode and the device, in plain C."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

#: name; batch, groups, channels and rows of a group, size, kernel, stride, padding; forward, gradient of x, gradient of w
LAYERS = {
    "ResNet's first": ((8, 1, 3, 64, 224, 7, 2, 3), "mma mma mma"),
    "ResNet's 3 x 3": ((8, 1, 64, 64, 56, 3, 1, 1), "wgmma wgmma wgmma"),
    "ResNet's 3 x 3 of one small image": ((1, 1, 512, 512, 7, 3, 1, 1), "wgmma wgmma mma"),
    "ResNet's 1 x 1": ((64, 1, 2048, 512, 7, 1, 1, 0), "wgmma wgmma mma"),
    "ViT's patches": ((8, 1, 3, 768, 224, 16, 16, 0), "mma mma mma"),
    "ConvNeXt's patches": ((8, 1, 3, 96, 224, 4, 4, 0), "few_terms mma mma"),
    "ConvNeXt's downsampling": ((8, 1, 96, 192, 56, 2, 2, 0), "wgmma wgmma wgmma"),
    "ConvNeXt's depthwise": ((8, 96, 1, 1, 56, 7, 1, 3), "direct direct direct"),
    "EfficientNet's depthwise with a stride": ((8, 96, 1, 1, 112, 3, 2, 1), "direct direct direct"),
    "EfficientNet's expansion": ((8, 1, 16, 96, 112, 1, 1, 0), "few_terms mma wgmma"),
    "EfficientNet's excitation": ((8, 1, 4, 96, 1, 1, 1, 0), "few_terms mma mma"),
    "a U-Net's first": ((1, 1, 3, 64, 256, 3, 1, 1), "few_terms mma mma"),
    "a U-Net's last": ((1, 1, 64, 2, 256, 1, 1, 0), "mma few_terms mma"),
    "groups of many channels": ((8, 32, 16, 16, 14, 3, 1, 1), "chain chain chain"),
}
PROGRAM = """
#include <stdio.h>
#include "cuda/conv/select.h"
int main(void)
{
    static const char *const name[] = {"chain", "direct", "few_terms", "mma", "wgmma"};
    long long b, g, c, r, n, k, s, p;
    while (scanf("%lld %lld %lld %lld %lld %lld %lld %lld", &b, &g, &c, &r, &n, &k, &s, &p) == 8)
        for (int mode = 0; mode < 2; mode++) {
            const int64_t m = (n + 2 * p - k) / s + 1, in[2] = {n, n}, out[2] = {m, m}, kernel[2] = {k, k};
            const int64_t stride[2] = {s, s}, padding[2] = {p, p};
            const tl_conv_shape x = tl_conv_merge(2, in, out, kernel, stride, padding, NULL);
            const tl_conv_device hopper = {132, mode, 1, 1};
            printf("%s %s %s\\n", name[tl_conv_select_product(&x, 0, b, g, c, r, hopper)],
                   name[tl_conv_select_product(&x, 1, b, g, r, c, hopper)],
                   name[tl_conv_select_weights(&x, b, g, c, r, 1, hopper)]);
        }
    return 0;
}
"""


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Layer -> its algorithms in both modes, on a Hopper GPU of 132 multiprocessors."""
    folder: Path = tmp_path_factory.mktemp("select")
    (folder / "select.c").write_text(PROGRAM)
    native = ROOT / "native"
    include = [f"-I{native / each}" for each in ("include", "src", ".")]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, *include, "select.c", "-o", "select"], cwd=folder, check=True)
    given = "\n".join(" ".join(map(str, sizes)) for sizes, _ in LAYERS.values())
    lines = subprocess.run(
        [folder / "select"], input=given, text=True, capture_output=True, check=True
    ).stdout.splitlines()
    return dict(zip(LAYERS, zip(lines[::2], lines[1::2], strict=True), strict=True))


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_models_take_these_algorithms(chosen: dict[str, tuple[str, str]], layer: str) -> None:
    fast, reproducible = chosen[layer]
    assert fast == LAYERS[layer][1]
    assert reproducible == ("direct direct direct" if fast.startswith("direct") else "chain chain chain")
