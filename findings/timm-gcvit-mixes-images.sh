#!/bin/sh
# Surprise: in timm 1.0.29 an image's logits by a GCViT depend on the other images of its batch, in float64 and in eval mode too: the
# global queries of all images are repeated as a list for windows that lie image by image, so most windows meet the queries of
# another image. A batch of copies of one image shows nothing. Only a second image beside it, or a batch of one, does.
#
# Natural guess: a vision model without batch statistics computes each image by itself, and where its logits change with the batch,
# a kernel is to blame. A test of kernels for batch invariance by models must know that a model can mix its samples. timm 1.0.31
# keeps each image's queries with its windows.
#
# timm 1.0.29 and 1.0.31, torch 2.14.1, CPU; Python 3.11; 2026-11-29.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder/common" torch==2.14.1 torchvision==0.29.1 numpy==2.4.6 pyyaml huggingface_hub safetensors
for version in 1.0.29 1.0.31; do
    python3 -m pip install --quiet --no-deps --target "$folder/$version" timm==$version
    PYTHONPATH=$folder/$version:$folder/common python3 - <<'PROGRAM'
import timm
import torch

torch.manual_seed(0)
model = timm.create_model("gcvit_xxtiny", num_classes=10).double().eval()
images = torch.randn(2, 3, 224, 224, dtype=torch.float64)
with torch.no_grad():
    alone = model(images[:1])[0]
    moved = {
        "beside a copy": (model(images[:1].expand(2, -1, -1, -1))[0] - alone).abs().max().item(),
        "beside another image": (model(images)[0] - alone).abs().max().item(),
    }
print(f"timm {timm.__version__}: logits {alone.abs().max().item():.3g}; moved by", {k: f"{v:.2g}" for k, v in moved.items()})
assert moved["beside a copy"] < 1e-9
assert (moved["beside another image"] > 1e-4) == (timm.__version__ == "1.0.29"), "the queries' order is another one now"
PROGRAM
done
