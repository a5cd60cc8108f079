"""The models of `python -m benchmarks models`: architectures of transformers and timm at the sizes of published models.

Weights are random, and only the first layers are there, so that a row takes seconds; sizes of layers, heads and vocabularies
are the published ones. Models are taken without their heads: a head over the vocabulary costs what five layers cost, and with
few layers it would be what is measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = dict[str, Any]
PAST, ROOM = 896, 1024  # tokens in a decoder's cache before a step, and those that it has room for: GPT-2 has no more


@dataclass(frozen=True)
class Load:
    """`config`: what `published` has other than the defaults of `architecture`, which is a `model_type` of transformers or a
    name of timm. `layers` of `of` are there. `batch` and `length`: sequences and their tokens, or images and their side."""

    name: str
    kind: str
    architecture: str
    published: str
    layers: int
    of: int
    batch: int
    length: int
    config: dict[str, Any] = field(default_factory=dict)
    decodes: bool = False
    channels_last: bool = False

    @property
    def library(self) -> str:
        return "timm" if self.kind == "convolutional" or self.kind.startswith("timm") else "transformers"

    def depth(self, small: bool, layers: int | None) -> int:
        """Layers: `layers`, or all if there are fewer; without a number those of the row."""
        return 2 if small and self.layers > 1 else min(layers, self.of) if layers else self.layers

    def sizes(self, small: bool, layers: int | None) -> str:
        batch, length = self.shape(small)
        many = "images" if "vision" in self.kind or self.library == "timm" else "sequences"
        count = self.depth(False, layers)
        cut = "" if count == self.of else f", {count} of {self.of} layers"
        return f"{self.published}{cut}, {batch} {many} of {length}{'x' + str(length) if many == 'images' else ''}"

    def shape(self, small: bool) -> tuple[int, int]:
        return (
            (2, 64 if self.kind in ("convolutional", "vision", "timm, vision") else 16)
            if small
            else (self.batch, self.length)
        )


def _decoder(name: str, published: str, layers: int, of: int, decodes: bool = False, **config: Any) -> Load:
    return Load(name, "decoder", name, published, layers, of, 4, 1024, config, decodes)


def _encoder(name: str, published: str, of: int, length: int, **config: Any) -> Load:
    return Load(f"{name} {length}", "encoder", name, published, 4, of, 32, length, config)


def _sizes(hidden: int, inner: int, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    """Of a token and of the feed-forward network, and how many heads of queries and of keys, by the names of most decoders."""
    own = dict(hidden_size=hidden, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=groups)
    return own | more


LLAMA = _sizes(2048, 8192, 32, 8, head_dim=64, vocab_size=128256)
QWEN = _sizes(1024, 3072, 16, 8, head_dim=128, vocab_size=151936)
PHI = _sizes(2560, 10240, 32, 32, partial_rotary_factor=0.4)
MISTRAL = _sizes(4096, 14336, 32, 8, vocab_size=32000)
GPT_OSS = _sizes(2880, 2880, 64, 8, head_dim=64, num_local_experts=32)
OPT = dict(hidden_size=2048, ffn_dim=8192, num_attention_heads=32, word_embed_proj_dim=2048)
PYTHIA = dict(hidden_size=2048, intermediate_size=8192, num_attention_heads=16, vocab_size=50304)
DEBERTA = dict(
    vocab_size=128100, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=256, norm_rel_ebd="layer_norm",
    share_att_key=True, position_biased_input=False, type_vocab_size=0, max_relative_positions=-1,
)  # fmt: skip
T5 = dict(d_model=768, d_kv=64, d_ff=3072, num_heads=12)
BART = dict(
    d_model=768, encoder_ffn_dim=3072, decoder_ffn_dim=3072, encoder_attention_heads=12, decoder_attention_heads=12
)
WHISPER = BART | dict(vocab_size=51865, num_mel_bins=80, max_source_positions=1500)


def loads() -> list[Load]:
    """The most telling first: a run that is cut off has those."""
    return [
        _decoder("gpt2", "GPT-2", 4, 12, True),
        _decoder("llama", "Llama 3.2 1B", 4, 16, True, **LLAMA),
        _encoder("bert", "BERT base", 12, 128),
        Load("vit", "vision", "vit", "ViT-B/16", 4, 12, 64, 224),
        Load("resnet50 NHWC", "convolutional", "resnet50", "ResNet-50", 1, 1, 64, 224, channels_last=True),
        Load("convnext NHWC", "convolutional", "convnext_tiny", "ConvNeXt-T", 1, 1, 64, 224, channels_last=True),
        Load("t5", "encoder-decoder", "t5", "T5 base", 2, 12, 8, 512, T5),
        _decoder("qwen3", "Qwen3 0.6B", 4, 28, True, **QWEN),
        _decoder("mistral", "Mistral 7B", 2, 32, **MISTRAL),
        _encoder("bert", "BERT base", 12, 512),
        _decoder("gemma2", "Gemma 2 2B", 2, 26),
        _decoder("phi", "Phi-2", 4, 32, True, **PHI),
        _encoder("modernbert", "ModernBERT base", 22, 512),
        _decoder("opt", "OPT 1.3B", 4, 24, True, **OPT),
        _decoder("gpt_neox", "Pythia 1.4B", 4, 24, True, **PYTHIA),
        Load("resnet50 NCHW", "convolutional", "resnet50", "ResNet-50", 1, 1, 64, 224),
        Load("convnext NCHW", "convolutional", "convnext_tiny", "ConvNeXt-T", 1, 1, 64, 224),
        _encoder("roberta", "RoBERTa base", 12, 512, vocab_size=50265, max_position_embeddings=514, type_vocab_size=1),
        _encoder("distilbert", "DistilBERT base", 6, 512),
        Load("dinov2", "vision", "dinov2", "DINOv2-B/14", 4, 12, 64, 224),
        Load("bart", "encoder-decoder", "bart", "BART base", 2, 6, 8, 512, BART),
        _decoder("bloom", "BLOOM 1.7B", 4, 24, hidden_size=2048, n_head=16),
        _decoder("mixtral", "Mixtral 8x7B", 1, 32),
        _decoder("gpt_oss", "gpt-oss 20B", 2, 24, **GPT_OSS),
        Load("efficientnet NHWC", "convolutional", "efficientnet_b0", "EfficientNet-B0", 1, 1, 64, 224, channels_last=True),
        Load("regnety NHWC", "convolutional", "regnety_032", "RegNetY-3.2GF", 1, 1, 64, 224, channels_last=True),
        Load("mobilenetv3 NHWC", "convolutional", "mobilenetv3_large_100", "MobileNetV3-L", 1, 1, 64, 224, channels_last=True),
        _encoder("deberta-v2", "DeBERTa v3 base", 12, 512, **DEBERTA),
        Load("whisper", "encoder-decoder", "whisper", "Whisper small", 2, 12, 8, 448, WHISPER),
        Load("timm vit", "timm, vision", "vit_base_patch16_224", "ViT-B/16 of timm", 4, 12, 64, 224),
    ]  # fmt: skip


COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)


def make(
    load: Load, device: str, dtype: torch.dtype, small: bool = False, layers: int | None = None
) -> torch.nn.Module:
    """The module with random weights, dropout off. `small`: at the sizes of tests/pytorch/zoo.py."""
    from tests.pytorch.zoo import without_dropout

    torch.manual_seed(0)
    count = load.depth(small, layers)
    with torch.device(device):
        module = _timm(load, count, small) if load.library == "timm" else _transformer(load, count, small)
    module = without_dropout(module.to(device=device, dtype=dtype))
    return module.to(memory_format=torch.channels_last) if load.channels_last else module


def _transformer(load: Load, layers: int, small: bool) -> torch.nn.Module:
    from tests.pytorch.zoo import SMALL

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[load.architecture](**load.config)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:layers]
    sizes = {**SMALL, "position_buckets": 16} if small else {}
    plain = lambda k: hasattr(config, k) and not isinstance(getattr(config, k), list | tuple | dict | bool | str | None)  # noqa: E731
    for key, value in [
        *sizes.items(),
        *((k, layers) for k in COUNTS),
        *((k, 0.0) for k in vars(config) if "drop" in k),
    ]:
        if plain(key):
            setattr(config, key, value)
    config.use_cache = False
    return AutoModel.from_config(config)


def _timm(load: Load, layers: int, small: bool) -> torch.nn.Module:
    from tests.pytorch.zoo import names_of_torchvision

    names_of_torchvision()
    import timm

    few = {"depth": layers} if load.of > 1 else {}
    if small and "vit" in load.architecture:
        few |= {"img_size": 64, "embed_dim": 64, "num_heads": 4}
    return timm.create_model(load.architecture, num_classes=10 if small else 1000, **few)


def inputs(load: Load, module: torch.nn.Module, device: str, dtype: torch.dtype, small: bool = False) -> Inputs:
    """The arguments of a call, by name."""
    batch, length = load.shape(small)
    generator = torch.Generator(device).manual_seed(0)
    drawn = lambda *shape: torch.randn(*shape, device=device, generator=generator).to(dtype)  # noqa: E731
    if load.library == "timm":
        image = drawn(batch, 3, length, length)
        return {_first(module): image.contiguous(memory_format=torch.channels_last) if load.channels_last else image}
    config, main = module.config, module.main_input_name
    words = getattr(config, "vocab_size", 512)
    tokens = torch.randint(3, words, (batch, length), device=device, generator=generator)
    if main == "pixel_values":
        return {main: drawn(batch, 3, length, length)}
    if main == "input_features":
        features = drawn(batch, config.num_mel_bins, 2 * config.max_source_positions)
        return {main: features, "decoder_input_ids": tokens}
    return {main: tokens} | ({"decoder_input_ids": tokens} if config.is_encoder_decoder else {})


def _first(module: torch.nn.Module) -> str:
    """The name of the forward function's first argument."""
    import inspect

    return next(iter(inspect.signature(module.forward).parameters))


@dataclass
class Step:
    """One token of each sequence, with a cache of what was before; `reset` takes the cache back to where it was."""

    inputs: Inputs
    cache: Any
    past: int

    def reset(self) -> None:
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.past)


def decoding(load: Load, module: torch.nn.Module, device: str, small: bool = False, like: Step | None = None) -> Step:
    """The step after a prompt; with `like`, with the keys and values of that step's cache in the types of `module`."""
    from transformers import StaticCache

    past, room = (8, 96) if small else (PAST, ROOM)
    batch = load.shape(small)[0]
    generator = torch.Generator(device).manual_seed(1)
    tokens = torch.randint(3, module.config.vocab_size, (batch, past + 1), device=device, generator=generator)
    cache = StaticCache(config=module.config, max_cache_len=room)
    with torch.no_grad():
        module(input_ids=tokens[:, :past], past_key_values=cache, use_cache=True)
        for mine, other in zip(cache.layers, like.cache.layers if like else ()):
            mine.keys.copy_(other.keys)
            mine.values.copy_(other.values)
    return Step({"input_ids": tokens[:, past:].clone(), "past_key_values": cache, "use_cache": True}, cache, past)


Output = Callable[[Any], torch.Tensor]


def output(value: Any) -> torch.Tensor:
    """The tensor of what a model returns that stands for all."""
    return value if isinstance(value, torch.Tensor) else value[0]
