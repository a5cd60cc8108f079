"""Models of other projects, small and with random weights: what `torch.compile(model, backend="tilec")` is tried on.

The architectures are those of transformers and timm; only sizes are set here. Nothing is downloaded. Dropout is off, so that
a training step has one right answer.
"""

from __future__ import annotations

import enum
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass

import torch

Inputs = dict[str, torch.Tensor]

# Every attribute of a configuration that has one of these names gets this value.
SMALL = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embedding_size": 64, "word_embed_proj_dim": 64,
    "intermediate_size": 128, "ffn_dim": 128, "hidden_dim": 128, "d_ff": 128, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "moe_intermediate_size": 64, "n_inner": 128,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "head_dim": 16, "d_kv": 16, "rotary_dim": 8,
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "state_size": 8,
    "vocab_size": 512, "max_position_embeddings": 128, "num_labels": 10, "image_size": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
    "num_mel_bins": 16, "max_source_positions": 50,
    "attention_hidden_size": 64, "sliding_window": 8, "attention_window": 8,
    "mask_time_prob": 0.0, "mask_feature_prob": 0.0,
}  # fmt: skip

TRANSFORMERS = {
    "decoder": (
        "gpt2 llama mistral qwen2 qwen3 olmo2 gemma gemma2 gemma3_text phi phi3 opt bloom gpt_neox gpt_neo gptj codegen "
        "stablelm starcoder2 cohere granite glm4"
    ),
    "mixture of experts": "mixtral qwen3_moe olmoe gpt_oss",
    "encoder": (
        "bert roberta distilbert albert electra deberta deberta-v2 mpnet xlm-roberta modernbert squeezebert "
        "nystromformer fnet clip_text_model"
    ),
    "encoder-decoder": "t5 mt5 bart mbart pegasus m2m_100 blenderbot whisper",
    "vision": "vit deit dinov2 beit segformer mobilenet_v2 clip_vision_model siglip_vision_model dpt",
    "speech": "wav2vec2 hubert",
}
TIMM = {
    "convolutional": (
        "resnet18 resnet10t resnext26ts seresnet18 densenet121 mobilenetv2_035 mobilenetv3_small_050 efficientnet_lite0 "
        "ghostnet_050 mnasnet_050 regnety_002 regnetx_002 convnext_atto convnextv2_atto repvgg_a0 mixnet_s fbnetc_100 "
        "spnasnet_100 darknet17 ese_vovnet19b_dw tinynet_e lcnet_050"
    ),
    "vision": "vit_tiny_patch16_224 deit_tiny_patch16_224 cait_xxs24_224 edgenext_xx_small mobilevit_xxs",
}


@dataclass(frozen=True)
class Model:
    """`make` builds the module with random weights; `inputs` are the keyword arguments of a call."""

    name: str
    library: str
    kind: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[torch.nn.Module], Inputs]


def models() -> list[Model]:
    return [
        *(Model(n, "transformers", kind, transformer(n), _inputs) for kind, names in TRANSFORMERS.items() for n in names.split()),
        *(Model(n, "timm", kind, _timm(n), _image) for kind, names in TIMM.items() for n in names.split()),
    ]  # fmt: skip


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """The model with every probability of a dropout at 0, those of functional calls included."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or (name == "p" and "Dropout" in type(module).__name__)):
                setattr(module, name, 0.0)
    return model


def transformer(name: str, **more: object) -> Callable[[], torch.nn.Module]:
    """An architecture, with `more` in its configuration."""

    def make() -> torch.nn.Module:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from transformers import AutoModel
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        config = CONFIG_MAPPING[name](**more)
        if getattr(config, "layer_types", None) is not None:
            config.layer_types = config.layer_types[: SMALL["num_hidden_layers"]]
        for key, value in [*SMALL.items(), *((k, 0.0) for k in vars(config) if "drop" in k)]:
            if hasattr(config, key) and not isinstance(getattr(config, key), list | tuple | dict | bool | str | None):
                setattr(config, key, value)
        config.use_cache = False
        return AutoModel.from_config(config)

    return make


def _inputs(model: torch.nn.Module) -> Inputs:
    config, main = model.config, model.main_input_name
    tokens = torch.randint(3, 500, (2, 16))
    inputs = {
        "pixel_values": lambda: torch.randn(2, 3, 64, 64),
        "input_values": lambda: torch.randn(2, 2000),
        "input_features": lambda: torch.randn(2, SMALL["num_mel_bins"], 2 * SMALL["max_source_positions"]),
    }.get(main, lambda: tokens)()
    return {main: inputs} | ({"decoder_input_ids": tokens} if config.is_encoder_decoder else {})


def _timm(name: str) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        names_of_torchvision()
        import timm

        try:
            return timm.create_model(name, img_size=64, num_classes=10)
        except TypeError:  # a model of any size of image
            return timm.create_model(name, num_classes=10)

    return make


def _image(model: torch.nn.Module) -> Inputs:
    return {"x": torch.randn(2, 3, 64, 64)}


def names_of_torchvision() -> None:
    """timm imports names of torchvision that its models do not call: empty classes stand for them where it is not installed."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return

    class Names(types.ModuleType):
        def __getattr__(self, name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    modes = enum.Enum("InterpolationMode", {m: m.lower() for m in ["NEAREST", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS"]})
    for path in (
        "torchvision", "torchvision.datasets", "torchvision.datasets.folder", "torchvision.models",
        "torchvision.models.feature_extraction", "torchvision.ops", "torchvision.ops.misc", "torchvision.transforms",
        "torchvision.transforms.functional", "torchvision.transforms.v2",
    ):  # fmt: skip
        module = Names(path)
        module.__spec__ = importlib.machinery.ModuleSpec(path, None)
        module.__path__ = []
        module.InterpolationMode = modes
        sys.modules[path] = module
        parent, _, name = path.rpartition(".")
        if parent:
            setattr(sys.modules[parent], name, module)
