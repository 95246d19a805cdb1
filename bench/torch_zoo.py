"""Unmodified models of torchvision, timm, transformers and torch.nn, with weights and inputs that NumPy draws from a fixed seed,
so that they are the same everywhere.

``TIMED`` are those of bench.torch_models, in the sizes that people train, and ``TRACED`` those of bench.trace. ``FURTHER`` are
small, one for each way in which a model may be built, for bench.torch_bits. PyTorch is imported where a model is made."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import describe_run
from tlrt.verify.documents import format_command, write_document

#: where the models come from
PACKAGES = ("torch", "torchvision", "timm", "transformers")
#: standard deviation of drawn weights
SPREAD = 0.02
#: shape of one example, the number of classes (0: real numbers), and the least class
Drawn = tuple[tuple[int, ...], int, int]
Make = Callable[[], tuple[Any, dict[str, Drawn]]]


def real(*shape: int) -> Drawn:
    return shape, 0, 0


def whole(classes: int, *shape: int, least: int = 0) -> Drawn:
    return shape, classes, least


def images(size: int) -> dict[str, Drawn]:
    return {"x": real(3, size, size), "labels": whole(1000)}


def _vision(name: str, size: int = 224, **options: Any) -> Make:
    def build() -> tuple[Any, dict[str, Drawn]]:
        import torchvision

        return getattr(torchvision.models, name)(weights=None, **options), images(size)

    return build


def _timm(name: str, size: int = 224, dtype: str = "float32", **options: Any) -> Make:
    def build() -> tuple[Any, dict[str, Drawn]]:
        import timm
        import torch

        return timm.create_model(name, pretrained=False, **options).to(getattr(torch, dtype)), images(size)

    return build


def _language(kind: str, head: str, inputs: Any, dtype: str = "float32", **options: Any) -> Make:
    """`inputs`: drawn, or the length of a text with as many labels."""

    def build() -> tuple[Any, dict[str, Drawn]]:
        import torch
        import transformers

        config = getattr(transformers, f"{kind}Config")(**options)
        drawn = inputs
        if isinstance(inputs, int):
            drawn = {n: whole(config.vocab_size, inputs) for n in ("input_ids", "labels")}
        return getattr(transformers, f"{kind}{head}")(config).to(getattr(torch, dtype)), drawn

    return build


def _module(name: str, inputs: dict[str, Drawn], *arguments: Any, **options: Any) -> Make:
    def build() -> tuple[Any, dict[str, Drawn]]:
        from bench import torch_modules

        return getattr(torch_modules, name)(*arguments, **options), inputs

    return build


def _text(length: int, classes: int) -> dict[str, Drawn]:
    return {"x": whole(classes, length), "labels": whole(classes, length)}


TIMED: Mapping[str, Make] = {
    "ResNet-50": _vision("resnet50"), "EfficientNet-B0": _vision("efficientnet_b0"),
    "ConvNeXt-T": _vision("convnext_tiny"), "MobileNetV3-L": _vision("mobilenet_v3_large"),
    "ViT-B/16": _vision("vit_b_16"), "Swin-T": _vision("swin_t"), "DeiT-S": _timm("deit_small_patch16_224"),
    "GPT-2": _language("GPT2", "LMHeadModel", 256),
    "BERT-base": _language("Bert", "ForMaskedLM", 256),
    "Llama-style": _language("Llama", "ForCausalLM", 256, hidden_size=768, intermediate_size=2048, num_hidden_layers=6,
                             num_attention_heads=12, num_key_value_heads=4, vocab_size=16000),
    "Qwen3-style": _language("Qwen3", "ForCausalLM", 256, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4,
                             num_attention_heads=16, num_key_value_heads=8, head_dim=64, vocab_size=16000),
    "T5-small": _language("T5", "ForConditionalGeneration", 128, decoder_start_token_id=0, pad_token_id=0),
    "LSTM": _module("Recurrent", _text(64, 10000), "LSTM", 10000, 512),
    "Mamba": _language("Mamba", "ForCausalLM", 64, hidden_size=256, num_hidden_layers=2, vocab_size=8000),
}  # fmt: skip

#: those of bench.trace
TRACED: Mapping[str, Make] = {
    **{n: TIMED[n] for n in ("ResNet-50", "ViT-B/16", "ConvNeXt-T", "Swin-T", "EfficientNet-B0")},
    "U-Net": _module("Contour", {"x": real(3, 256, 256), "labels": whole(21, 256, 256)}, 64, 21),
    "GPT-2": _language("GPT2", "LMHeadModel", 1024),
    "Llama-style": _language("Llama", "ForCausalLM", 1024, num_hidden_layers=2, num_key_value_heads=8),
    "BERT": _language("Bert", "ForMaskedLM", 512),
    "T5": _language("T5", "ForConditionalGeneration", 512, d_model=768, d_ff=3072, num_layers=12, num_heads=12,
                    decoder_start_token_id=0, pad_token_id=0),
    "Mamba": _language("Mamba", "ForCausalLM", 256, num_hidden_layers=2),
    "LSTM": _module("Recurrent", _text(128, 10000), "LSTM", 10000, 512),
    "GNN": _module("Messages", {"nodes": real(1250, 64), "ends": whole(1250, 2, 12500), "labels": whole(40, 1250)}, 128, 3, 40),
    "FNO": _module("Operator2d", {"field": real(3, 64, 64), "wanted": real(1, 64, 64)}, 64, 12, 4),
    "FNO 1-D": _module("Operator1d", {"field": real(8192, 2), "wanted": real(8192, 1)}, 64, 16, 4),
}  # fmt: skip

# ---- small models --------------------------------------------------------------------------------------------------------

_SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 512, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
_PAIR: dict[str, Any] = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "decoder_start_token_id": 1,
}  # fmt: skip
_SPEECH: dict[str, Any] = {
    "conv_dim": (32,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}
_BOXES = {"images": real(3, 64, 64)}
_SCENE = {"x": real(3, 64, 64), "labels": whole(11, 64, 64)}


def _small(kind: str, head: str = "ForCausalLM", inputs: Any = 48, **options: Any) -> Make:
    return _language(kind, head, inputs, **{**_SMALL, **options})


def _each(make: Callable[..., Make], names: str, *arguments: Any, **options: Any) -> dict[str, Make]:
    return {n: make(n, *arguments, **options) for n in names.split()}


FURTHER: Mapping[str, Make] = {
    **_each(_vision, "regnet_y_400mf densenet121 squeezenet1_1 shufflenet_v2_x0_5 mnasnet0_5", 64),
    **_each(_vision, "inception_v3 googlenet", 96, aux_logits=False, init_weights=False),
    **_each(_timm, "ghostnet_100 repvgg_a0 dm_nfnet_f0 hrnet_w18_small convmixer_768_32 mobilenetv4_conv_small fastvit_t8 "
                   "resnest14d skresnet18 mobilevit_xxs poolformer_s12 edgenext_xx_small", 64),
    **_each(_timm, "coatnet_nano_rw_224 efficientformer_l1 mixer_s32_224 resmlp_12_224 xcit_nano_12_p16_224 "
                   "levit_128s hiera_tiny_224 tiny_vit_5m_224 swinv2_cr_tiny_224 focalnet_tiny_srf twins_svt_small pvt_v2_b0 "
                   "visformer_tiny"),
    **_each(_timm, "maxvit_rmlp_pico_rw_256", 256),
    **_each(_timm, "beit_base_patch16_224 eva02_tiny_patch14_224 cait_xxs24_224", depth=2, num_classes=1000),
    "convit_tiny": _timm("convit_tiny", depth=11),
    "ViT-bfloat16": _timm("vit_tiny_patch16_224", dtype="bfloat16", depth=2),
    **_each(lambda n, **o: _module("Scene", _SCENE, n, 11, **o), "deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large"),
    **_each(lambda n, **o: _module("Detector", _BOXES, n, 7, **o),
            "fasterrcnn_mobilenet_v3_large_320_fpn retinanet_resnet50_fpn fcos_resnet50_fpn", min_size=64, max_size=64),
    "ssdlite320_mobilenet_v3_large": _module("Detector", _BOXES, "ssdlite320_mobilenet_v3_large", 7),
    "diffusion U-Net": _module("Diffusion", {"image": real(3, 16, 16), "noise": real(3, 16, 16), "time": whole(1000)}, 32),
    "ranking": _module("Ranker", {"words": whole(500, 4, 5), "numbers": real(8), "clicks": whole(2)}, 500, 16, 8),
    "graph": _module("Graph", {"nodes": real(20, 8), "ends": whole(20, 2, 60), "labels": whole(5)}, 8, 5),
    "FNO": _module("Operator2d", {"field": real(3, 16, 16), "wanted": real(1, 16, 16)}, 16, 4, 2),
    "FNet": _small("FNet", "ForMaskedLM"),
    "GRU": _module("Recurrent", _text(16, 512), "GRU", 512, 64, bidirectional=True),
    "nn.Transformer": _module("Translator", _text(16, 512), 512, 64),
    "Llama-bfloat16": _small("Llama", dtype="bfloat16"),
    "Mixtral": _small("Mixtral", num_local_experts=4),
    "Qwen2-MoE": _small("Qwen2Moe", **_EXPERTS), "Qwen3-MoE": _small("Qwen3Moe", head_dim=16, **_EXPERTS),
    "GPT-OSS": _small("GptOss", num_local_experts=4, head_dim=16),
    "DeepSeek-V3": _small("DeepseekV3", n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, q_lora_rank=32,
                          kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, first_k_dense_replace=1,
                          moe_intermediate_size=64, num_key_value_heads=4),
    "Qwen3-Next": _small("Qwen3Next", num_hidden_layers=4, head_dim=16, linear_num_value_heads=4, linear_num_key_heads=2,
                         linear_key_head_dim=16, linear_value_head_dim=16, **_EXPERTS),
    "Gemma": _small("Gemma", head_dim=16), "Gemma-2": _small("Gemma2", head_dim=16),
    "Mistral": _small("Mistral", sliding_window=16),
    "Falcon": _small("Falcon"), "GPT-NeoX": _small("GPTNeoX"), "Phi": _small("Phi"), "Phi-3": _small("Phi3"),
    "OPT": _small("OPT", ffn_dim=128, word_embed_proj_dim=64), "Bloom": _small("Bloom", n_layer=2, n_head=4),
    "RWKV": _small("Rwkv", attention_hidden_size=64),
    "Mamba-2": _small("Mamba2", num_heads=8, head_dim=16, state_size=16, n_groups=1),
    "RecurrentGemma": _small("RecurrentGemma", num_hidden_layers=3, lru_width=64, attention_window_size=32),
    "LFM2": _small("Lfm2", num_hidden_layers=3),
    "ModernBERT": _small("ModernBert", "ForMaskedLM", num_hidden_layers=3),
    "ELECTRA": _small("Electra", "ForMaskedLM", embedding_size=64), "ALBERT": _small("Albert", "ForMaskedLM", embedding_size=32),
    "DeBERTa-v2": _small("DebertaV2", "ForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "Longformer": _small("Longformer", "ForMaskedLM", attention_window=16),
    "Funnel": _language("Funnel", "ForMaskedLM", 48, vocab_size=512, d_model=64, n_head=4, d_head=16, d_inner=128,
                        block_sizes=[1, 1]),
    "BART": _small("Bart", "ForConditionalGeneration", {"input_ids": whole(512, 32), "labels": whole(512, 16)}, **_PAIR),
    "Whisper": _small("Whisper", "ForConditionalGeneration", {"input_features": real(80, 200), "labels": whole(512, 16)},
                      max_source_positions=100, **_PAIR),
    "wav2vec 2.0": _small("Wav2Vec2", "ForCTC", {"input_values": real(8000), "labels": whole(512, 8, least=3)}, **_SPEECH),
    "SegFormer": _language("Segformer", "ForSemanticSegmentation", {"pixel_values": real(3, 64, 64), "labels": whole(10, 64, 64)},
                           num_labels=10),
}  # fmt: skip
MODELS: Mapping[str, Make] = {**TIMED, **FURTHER}


def build(name: str, batch: int, dropout: float = 0.0) -> tuple[Any, dict[str, Any]]:
    """A model with its drawn weights, and its drawn inputs, on the CPU."""
    import torch

    model, drawn = MODELS[name]()
    rng = np.random.default_rng(list(name.encode()))
    with torch.no_grad():
        for label, p in sorted(model.named_parameters()):
            floats = torch.view_as_real(p) if p.is_complex() else p
            values = rng.standard_normal(floats.shape, np.float32) * np.float32(SPREAD)
            # scales of normalisations stay near 1
            floats.copy_(torch.from_numpy(np.asarray(values + np.float32(p.dim() == 1 and label.endswith("weight")))))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    kind = next(model.parameters()).dtype
    inputs: dict[str, Any] = {}
    for label, (shape, classes, least) in drawn.items():
        if classes:
            inputs[label] = torch.from_numpy(rng.integers(least, classes, (batch, *shape)))
        else:
            inputs[label] = torch.from_numpy(rng.standard_normal((batch, *shape), np.float32)).to(kind)
    return model.train(), inputs


def outputs(model: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """The logits and the loss."""
    import torch

    if "x" in inputs:
        logits = model(inputs["x"])
        return logits, torch.nn.functional.cross_entropy(logits, inputs["labels"])
    out = model(**inputs)
    return out.logits, out.loss


def step(model: Any, inputs: Mapping[str, Any]) -> Any:
    """One forward and backward pass; the logits."""
    import torch

    model.zero_grad(set_to_none=True)
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        torch.manual_seed(0)  # for models that leave out layers at random
    logits, loss = outputs(model, inputs)
    loss.backward()
    return logits


def digest(tensors: Iterable[Any]) -> str:
    import torch

    found = hashlib.sha256()
    for t in tensors:
        t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
        found.update(np.ascontiguousarray(t.detach().float().cpu().numpy(), "<f4").tobytes())
    return found.hexdigest()


def hashes(model: Any, logits: Any) -> dict[str, str]:
    grads = (p.grad for _, p in sorted(model.named_parameters()) if p.grad is not None)
    return {"logits": digest([logits]), "gradients": digest(grads)}


def has_packages() -> bool:
    """Whether models can be made; says what is missing."""
    missing = [n for n in PACKAGES if find_spec(n) is None]
    if missing:
        print(f"left out: {' and '.join(missing)} not installed")
    return not missing


def write_rows(path: Path, arguments: Sequence[str], devices: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows with the command behind ``python -m``, the machine and the versions that they came from."""
    versions = {n: __import__(n).__version__ for n in PACKAGES}
    run = describe_run([d.partition(":")[0] for d in devices])
    command = format_command(["python", "-m", *arguments])
    write_document(path, {"command": command, **run, **versions, "rows": rows})
