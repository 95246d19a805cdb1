"""Models of timm, transformers, torchvision and PyTorch with drawn weights, exported by both of PyTorch's exporters, on tlrt and
on onnxruntime.

The two may differ by what rounding may do: the root mean square of the difference is at most twice the bound that
:mod:`audit.models.spread` gives for one of them."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

import tlrt
import tlrt.onnx
from audit.models.spread import moved_results, rms, share
from tlrt.errors import UnavailableError

#: how many moved runs estimate what rounding may do
_RUNS = 3
_TIMM = ["byobnet", "convnext", "convnext2", "efficientnet", "efficientnet_gn", "efficientnet_ln", "mambaout", "nfnet", "resnet",
         "vit", "vit2", "vit3", "vit_relpos", "coatnet"]  # fmt: skip
_TORCHVISION = ["squeezenet1_1", "shufflenet_v2_x0_5", "mobilenet_v3_small", "mnasnet0_5", "mobilenet_v2"]
_PLAIN = [
    "lstm",
    "gru",
    "rnn",
    "encoder",
    "detector",
    "spatial_transformer",
    "unet",
    "gated_experts",
    "pointer",
    "groups",
]
_SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
          "max_position_embeddings": 40}  # fmt: skip
_DECODER = _SMALL | {"num_key_value_heads": 2, "attn_implementation": "eager"}
#: class of a configuration, class of a model, what the configuration says
_TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", _SMALL), "roberta": ("RobertaConfig", "RobertaModel", _SMALL),
    "electra": ("ElectraConfig", "ElectraModel", _SMALL | {"embedding_size": 16}),
    "albert": ("AlbertConfig", "AlbertModel", _SMALL | {"embedding_size": 16}),
    "distilbert": ("DistilBertConfig", "DistilBertModel", {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4,
                                                           "hidden_dim": 37}),
    "mpnet": ("MPNetConfig", "MPNetModel", _SMALL),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _DECODER), "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _DECODER),
    "mistral": ("MistralConfig", "MistralForCausalLM", _DECODER),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", _DECODER | {"num_local_experts": 4}),
    "t5": ("T5Config", "T5EncoderModel", {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2,
                                          "num_heads": 4}),
}  # fmt: skip


def _torch() -> Any:
    return importlib.import_module("torch")


def _imported(name: str) -> Any:
    """A package that imports torchvision, of which the compiled part need not fit the PyTorch at hand."""
    try:
        return importlib.import_module(name)
    except RuntimeError:
        with mock.patch("torch.library.register_fake", return_value=lambda function: function):
            return importlib.import_module(name)


def _image(size: int) -> Any:
    return (_torch().randn(2, 3, size, size),)


def _tokens() -> Any:
    return (_torch().randint(0, 99, (2, 9)),)


def _timm(name: str) -> Any:
    _imported("torchvision")
    sizes = {"vit3": {"img_size": 64}, "vit_relpos": {"img_size": 64}, "coatnet": {"img_size": 96}}.get(name, {})
    return _imported("timm").create_model(f"test_{name}", num_classes=10, **sizes), _image(sizes.get("img_size", 64))


def _torchvision(name: str) -> Any:
    return getattr(_imported("torchvision").models, name)(num_classes=10), _image(64)


def _transformers(name: str) -> Any:
    _imported("torchvision")
    config, model, said = _TRANSFORMERS[name]
    package = _imported("transformers")
    made = getattr(package, model)(getattr(package, config)(**said | {"use_cache": False}))

    if name == "mixtral":
        made.set_experts_implementation("eager")  # the grouped product has no form in ONNX

    class First(_torch().nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = made

        def forward(self, tokens: Any) -> Any:
            return self.inner(input_ids=tokens, attention_mask=_torch().ones_like(tokens))[0]

    return First(), _tokens()


def _plain(name: str) -> Any:
    """Modules of PyTorch by themselves, and the heads of a detector over a pyramid of features."""
    torch = _torch()
    nn, F = torch.nn, torch.nn.functional

    class Own(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            make: dict[str, Callable[[], Any]] = {
                "lstm": lambda: nn.LSTM(5, 7, 2, bidirectional=True), "gru": lambda: nn.GRU(5, 7),
                "rnn": lambda: nn.RNN(5, 7), "encoder": lambda: nn.TransformerEncoderLayer(16, 4, 20, batch_first=True),
                "detector": self.detector, "spatial_transformer": lambda: nn.Conv2d(3, 2, 3, padding=1),
                "unet": lambda: nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)]),
                "gated_experts": lambda: nn.ModuleList([nn.Linear(6, 3), *(nn.Linear(6, 6) for _ in range(3))]),
                "pointer": lambda: nn.Linear(6, 6), "groups": lambda: nn.GroupNorm(2, 6),
            }  # fmt: skip
            self.inner = make[name]()

        def detector(self) -> Any:
            vision = importlib.import_module("torchvision")
            self.stem = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1), nn.Conv2d(12, 16, 3, 2, 1)])
            self.head = importlib.import_module("torchvision.models.detection.retinanet").RetinaNetHead(8, 2, 3)
            return vision.ops.FeaturePyramidNetwork([8, 12, 16], 8)

        def forward(self, x: Any) -> Any:
            if name in ("lstm", "gru", "rnn"):
                return self.inner(x)[0]
            if name == "detector":
                features = []
                for layer in self.stem:
                    x = layer(x).relu()
                    features.append(x)
                found = self.head(list(self.inner(dict(zip("abc", features))).values()))
                return found["cls_logits"], found["bbox_regression"]
            if name == "spatial_transformer":
                return F.grid_sample(x, self.inner(x).tanh().permute(0, 2, 3, 1), align_corners=False)
            if name == "unet":
                y = F.max_pool2d(self.inner[0](x).relu(), 2)
                return F.interpolate(self.inner[1](y), scale_factor=2, mode="bilinear") + F.interpolate(
                    y, size=x.shape[2:]
                )
            if name == "gated_experts":
                weights, chosen = self.inner[0](x).softmax(-1).topk(2)
                made = torch.stack([expert(x) for expert in self.inner[1:]], 1)
                return (made.gather(1, chosen[..., None].expand(-1, -1, 6)) * weights[..., None]).sum(1)
            if name == "pointer":
                y = self.inner(x)
                return torch.where(y > 0, y, y.cumsum(0)), y.argmax(-1) + 1, (y > 0).sum(-1)
            return self.inner(x)

    shape = {"lstm": (6, 2, 5), "gru": (6, 2, 5), "rnn": (6, 2, 5), "encoder": (2, 5, 16), "gated_experts": (5, 6),
             "pointer": (5, 6), "groups": (2, 6, 5)}.get(name, (2, 3, 32, 32))  # fmt: skip
    if name == "detector":
        _imported("torchvision")
    return Own(), (torch.randn(shape),)


#: a model -> what makes it with example inputs
MODELS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(_TIMM, _timm), **dict.fromkeys(_TORCHVISION, _torchvision), **dict.fromkeys(_TRANSFORMERS, _transformers),
}  # fmt: skip


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def exported(name: str, dynamo: bool) -> tuple[bytes, list[np.ndarray]]:
    """A model in the format, and drawn inputs."""
    torch = _torch()
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # an operator that no exporter has
    with _quiet(), torch.no_grad():
        module, inputs = MODELS[name](name)
        module.eval()
        buffer = io.BytesIO()
        if dynamo:
            buffer.write(torch.onnx.export(module, inputs, dynamo=True).model_proto.SerializeToString())
        else:
            torch.onnx.export(module, inputs, buffer, dynamo=False)
    return buffer.getvalue(), [x.numpy() for x in inputs]


def _results(model: Any, inputs: list[np.ndarray], device: str) -> list[np.ndarray]:
    with tlrt.Session(device) as session, session.no_grad():
        found = model.bind(session)(*inputs)
        every = found if isinstance(found, tuple) else (found,)
        return [f if isinstance(f, np.ndarray) else np.asarray(f.numpy()) for f in every]


def judge(name: str, dynamo: bool) -> str:
    """ "equal" with the worst share of the bound, "refused" or "not exported" and why, or "different" and where."""
    try:
        file, inputs = exported(name, dynamo)
    except Exception as error:
        return f"not exported: {type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"
    runtime = importlib.import_module("onnxruntime")
    runtime.set_default_logger_severity(4)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    theirs = session.run(None, dict(zip((i.name for i in session.get_inputs()), inputs)))
    try:
        model = tlrt.onnx.load(file)
    except UnavailableError as error:
        return f"refused: {error}"
    ours, exact = _results(model, inputs, "cpu"), _results(model, inputs, "spec")
    squares = [0.0] * len(exact)
    for seed in range(_RUNS):
        with moved_results(seed):
            moved = _results(model, inputs, "spec")
        squares = [s + rms(m - e.astype(np.float64)) ** 2 / _RUNS for s, m, e in zip(squares, moved, exact)]
    worst = 0.0
    for k, (a, b, square) in enumerate(zip(ours, theirs, squares)):
        if a.shape != b.shape or a.dtype != b.dtype or (a.dtype.kind != "f" and (a != b).any()):
            shown = [f"{v.dtype}{list(v.shape)} {v.reshape(-1)[:3]}" for v in (a, b)]
            return f"different: output {k}: {shown[0]}, onnxruntime has {shown[1]}"
        if a.dtype.kind == "f":
            worst = max(worst, share(rms(a.astype(np.float64) - b), 2 * square**0.5))
    return f"{'equal' if worst <= 1 else 'different'}: {worst:.2g} of the bound"


def campaign(only: str | None = None) -> dict[str, str]:
    """Every model by both exporters: its verdict."""
    names = [n for n in MODELS if only is None or n == only]
    return {f"{n} ({'dynamo' if d else 'TorchScript'})": judge(n, d) for n in names for d in (False, True)}
