"""How many published architectures does `from_torch` import, with the numbers of PyTorch?

Needs `transformers`, in an environment of its own; nothing is downloaded. Each architecture is
built from a small configuration with random weights, in float64 and without dropout, whose numbers
are drawn otherwise in Purine. It is imported and trained for three steps of SGD, in Purine and in
plain PyTorch on the same batches. The largest difference is that of the losses, of all values of
the state dict and of the loss in test mode, relative where a value is above 1. Verdicts:

    agree      the largest difference is at most --tolerance
    refused    `from_torch` refused the module; the reason is told
    wrong      it was imported and the numbers differ: a bug of the importer
    failed     the module, the comparison or the importer broke, or the time was up

    pip install torch transformers
    python benchmarks/import_zoo.py --jobs 2
    python benchmarks/import_zoo.py --only bart mixtral
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BATCH, LENGTH, WORDS, STEPS = 2, 10, 50, 3
LR = 0.05


@dataclass(frozen=True)
class Architecture:
    """A class of transformers, the settings of its small configuration, and what it takes.

    `takes` is one of `inputs_of`, `gives` says which loss its output has: "words" and "classes" are
    logits, anything else is the name of a field of features. Settings that hold a dictionary for a
    configuration within the configuration are passed as they are.
    """

    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    takes: str = "tokens"
    gives: str = "words"


def small(**more: Any) -> dict[str, Any]:
    """The settings that most language models share."""
    return {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | more


def grouped(**more: Any) -> dict[str, Any]:
    """Models whose heads share keys and values."""
    return small(num_key_value_heads=2, **more)


def seq2seq(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    } | more


def vision(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "image_size": 32,
        "patch_size": 8,
        "num_labels": 5,
    } | more


def speech(**more: Any) -> dict[str, Any]:
    """Models of raw sound: two convolutions, then a transformer. Masking draws with NumPy: off."""
    return {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "conv_dim": (16, 16),
        "conv_kernel": (10, 4),
        "conv_stride": (5, 4),
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4,
        "num_feat_extract_layers": 2,
        "apply_spec_augment": False,
        "vocab_size": WORDS,
        "num_labels": 5,
        "classifier_proj_size": 16,
    } | more


TEXT_TOWER = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
IMAGE_TOWER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
TOWERS = {"text_config": TEXT_TOWER, "vision_config": IMAGE_TOWER, "projection_dim": 16}

A = Architecture
ARCHITECTURES: dict[str, Architecture] = {
    # Language models.
    "gpt2": A("GPT2LMHeadModel", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neo": A(
        "GPTNeoForCausalLM",
        small(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=4),
    ),
    "gpt_neox": A("GPTNeoXForCausalLM", small()),
    "gptj": A(
        "GPTJForCausalLM",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    ),
    "codegen": A(
        "CodeGenForCausalLM",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    ),
    "openai_gpt": A(
        "OpenAIGPTLMHeadModel", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4}
    ),
    "ctrl": A(
        "CTRLLMHeadModel",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 64},
    ),
    "opt": A("OPTForCausalLM", small(ffn_dim=64, word_embed_proj_dim=32)),
    "bloom": A(
        "BloomForCausalLM", {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    ),
    "mpt": A("MptForCausalLM", {"vocab_size": WORDS, "d_model": 32, "n_layers": 2, "n_heads": 4}),
    "biogpt": A("BioGptForCausalLM", small()),
    "falcon": A("FalconForCausalLM", small()),
    "llama": A("LlamaForCausalLM", grouped()),
    "mistral": A("MistralForCausalLM", grouped(sliding_window=4)),
    "qwen2": A("Qwen2ForCausalLM", grouped()),
    "qwen3": A("Qwen3ForCausalLM", grouped(head_dim=8)),
    "gemma": A("GemmaForCausalLM", grouped(head_dim=8)),
    "gemma2": A("Gemma2ForCausalLM", grouped(head_dim=8, sliding_window=4)),
    "gemma3": A("Gemma3ForCausalLM", grouped(head_dim=8, sliding_window=4)),
    "phi": A("PhiForCausalLM", small()),
    "phi3": A("Phi3ForCausalLM", grouped()),
    "stablelm": A("StableLmForCausalLM", grouped()),
    "olmo": A("OlmoForCausalLM", grouped()),
    "olmo2": A("Olmo2ForCausalLM", grouped()),
    "cohere": A("CohereForCausalLM", grouped()),
    "starcoder2": A("Starcoder2ForCausalLM", grouped()),
    "granite": A("GraniteForCausalLM", grouped()),
    "nemotron": A("NemotronForCausalLM", grouped()),
    "persimmon": A("PersimmonForCausalLM", small()),
    "glm": A("GlmForCausalLM", grouped(head_dim=8)),
    "smollm3": A("SmolLM3ForCausalLM", grouped()),
    "helium": A("HeliumForCausalLM", grouped(head_dim=8)),
    # Mixtures of experts.
    "mixtral": A("MixtralForCausalLM", grouped(num_local_experts=4)),
    "qwen2_moe": A(
        "Qwen2MoeForCausalLM",
        grouped(
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
        ),
    ),
    "qwen3_moe": A(
        "Qwen3MoeForCausalLM",
        grouped(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
    ),
    "olmoe": A("OlmoeForCausalLM", grouped(num_experts=4, num_experts_per_tok=2)),
    "gpt_oss": A(
        "GptOssForCausalLM",
        grouped(head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    ),
    "deepseek_v3": A(
        "DeepseekV3ForCausalLM",
        small(
            num_key_value_heads=4,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
        ),
    ),
    "switch": A(
        "SwitchTransformersForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "num_experts": 4,
            "router_jitter_noise": 0.0,
            "decoder_start_token_id": 0,
        },
        "masked_pair",
    ),
    # State spaces and recurrence.
    "mamba": A("MambaForCausalLM", small(state_size=4)),
    "mamba2": A(
        "Mamba2ForCausalLM",
        small(state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=4),
    ),
    "falcon_mamba": A("FalconMambaForCausalLM", small(state_size=4)),
    "rwkv": A(
        "RwkvForCausalLM", small(attention_hidden_size=32, context_length=64, rescale_every=1)
    ),
    "recurrent_gemma": A(
        "RecurrentGemmaForCausalLM",
        grouped(num_hidden_layers=3, head_dim=8, lru_width=32, attention_window_size=4),
    ),
    # Encoders of text.
    "bert": A("BertForMaskedLM", small()),
    "roberta": A("RobertaForMaskedLM", small()),
    "albert": A("AlbertForMaskedLM", small(embedding_size=16)),
    "distilbert": A(
        "DistilBertForMaskedLM",
        {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
    "electra": A("ElectraForMaskedLM", small(embedding_size=16)),
    "deberta": A(
        "DebertaForMaskedLM",
        small(relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16),
    ),
    "deberta_v2": A(
        "DebertaV2ForMaskedLM",
        small(relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16),
    ),
    "mpnet": A("MPNetForMaskedLM", small()),
    "xlm": A(
        "XLMWithLMHeadModel", {"vocab_size": WORDS, "emb_dim": 32, "n_layers": 2, "n_heads": 4}
    ),
    "xlnet": A(
        "XLNetLMHeadModel",
        {"vocab_size": WORDS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    ),
    "fnet": A("FNetForMaskedLM", small()),
    "modernbert": A("ModernBertForMaskedLM", small(local_attention=4)),
    "convbert": A("ConvBertForMaskedLM", small(embedding_size=32, conv_kernel_size=3)),
    "squeezebert": A("SqueezeBertForMaskedLM", small(embedding_size=32)),
    "mobilebert": A(
        "MobileBertForMaskedLM",
        small(embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    ),
    "nystromformer": A(
        "NystromformerForMaskedLM", small(num_landmarks=LENGTH, segment_means_seq_len=LENGTH)
    ),
    "roformer": A("RoFormerForMaskedLM", small(embedding_size=32)),
    "megatron_bert": A("MegatronBertForMaskedLM", small()),
    "big_bird": A("BigBirdForMaskedLM", small(attention_type="original_full")),
    "funnel": A(
        "FunnelForMaskedLM",
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "block_sizes": [1, 1],
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
        },
    ),
    "longformer": A("LongformerForMaskedLM", small(attention_window=4)),
    # Sequence to sequence.
    "t5": A(
        "T5ForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        "pair",
    ),
    "umt5": A(
        "UMT5ForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        "pair",
    ),
    "bart": A("BartForConditionalGeneration", seq2seq(), "pair"),
    "mbart": A("MBartForConditionalGeneration", seq2seq(), "pair"),
    "pegasus": A("PegasusForConditionalGeneration", seq2seq(), "pair"),
    "marian": A("MarianMTModel", seq2seq(), "pair"),
    "m2m_100": A("M2M100ForConditionalGeneration", seq2seq(), "pair"),
    "blenderbot": A("BlenderbotForConditionalGeneration", seq2seq(), "pair"),
    "prophetnet": A(
        "ProphetNetForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_position_embeddings": 64,
        },
        "pair",
    ),
    # Vision.
    "vit": A("ViTForImageClassification", vision(), "image", "classes"),
    "deit": A("DeiTForImageClassification", vision(), "image", "classes"),
    "beit": A("BeitForImageClassification", vision(), "image", "classes"),
    "dinov2": A("Dinov2ForImageClassification", vision(), "image", "classes"),
    "swin": A(
        "SwinForImageClassification",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "num_labels": 5,
        },
        "image",
        "classes",
    ),
    "swinv2": A(
        "Swinv2ForImageClassification",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "num_labels": 5,
        },
        "image",
        "classes",
    ),
    "convnext": A(
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 5},
        "image",
        "classes",
    ),
    "convnextv2": A(
        "ConvNextV2ForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 5},
        "image",
        "classes",
    ),
    "resnet": A(
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5},
        "image",
        "classes",
    ),
    "regnet": A(
        "RegNetForImageClassification",
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "groups_width": 4,
            "num_labels": 5,
        },
        "image",
        "classes",
    ),
    "mobilenet_v2": A(
        "MobileNetV2ForImageClassification",
        {"depth_multiplier": 0.25, "image_size": 32, "num_labels": 5},
        "image",
        "classes",
    ),
    "mobilevit": A(
        "MobileViTForImageClassification",
        {
            "image_size": 32,
            "hidden_sizes": [16, 20, 24],
            "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32],
            "num_attention_heads": 2,
            "num_labels": 5,
        },
        "image",
        "classes",
    ),
    "segformer": A(
        "SegformerForImageClassification",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "num_labels": 5,
        },
        "image",
        "classes",
    ),
    "poolformer": A(
        "PoolFormerForImageClassification",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
            "num_labels": 5,
        },
        "image",
        "classes",
    ),
    "levit": A(
        "LevitForImageClassification",
        {
            "image_size": 32,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "down_ops": [["Subsample", 8, 2, 2, 2, 2], ["Subsample", 8, 3, 2, 2, 2]],
            "num_labels": 5,
        },
        "image",
        "classes",
    ),
    "detr": A(
        "DetrModel",
        {
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "num_queries": 4,
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 16],
                "depths": [1, 1],
                "out_features": ["stage2"],
            },
        },
        "image",
        "last_hidden_state",
    ),
    "yolos": A(
        "YolosModel",
        vision(image_size=[32, 32], num_detection_tokens=4),
        "image",
        "last_hidden_state",
    ),
    # Sound.
    "whisper": A(
        "WhisperForConditionalGeneration",
        seq2seq(num_mel_bins=8, max_source_positions=16, max_target_positions=32),
        "spectrum",
    ),
    "wav2vec2": A("Wav2Vec2ForSequenceClassification", speech(), "sound", "classes"),
    "wav2vec2_ctc": A("Wav2Vec2ForCTC", speech(), "sound", "ctc"),
    "hubert": A("HubertForSequenceClassification", speech(), "sound", "classes"),
    "wavlm": A("WavLMForSequenceClassification", speech(num_buckets=8), "sound", "classes"),
    "unispeech": A("UniSpeechForSequenceClassification", speech(), "sound", "classes"),
    "sew": A("SEWForSequenceClassification", speech(squeeze_factor=2), "sound", "classes"),
    "speech_to_text": A(
        "Speech2TextForConditionalGeneration",
        seq2seq(
            input_feat_per_channel=8,
            conv_channels=16,
            max_source_positions=64,
            max_target_positions=32,
        ),
        "frames",
    ),
    "audio_spectrogram": A(
        "ASTForAudioClassification",
        vision(num_mel_bins=16, max_length=32, frequency_stride=8, time_stride=8),
        "patches",
        "classes",
    ),
    # Several kinds of data.
    "clip": A("CLIPModel", TOWERS, "text_and_image", "pairs"),
    "siglip": A(
        "SiglipModel",
        {"text_config": TEXT_TOWER | {"projection_size": 32}, "vision_config": IMAGE_TOWER},
        "text_and_image",
        "pairs",
    ),
    "blip": A("BlipModel", TOWERS, "text_and_image", "pairs"),
    "vilt": A(
        "ViltModel", small(image_size=32, patch_size=8), "text_and_image", "last_hidden_state"
    ),
    "git": A("GitForCausalLM", small(vision_config=IMAGE_TOWER), "text_and_image", "words"),
    "llava": A(
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **grouped()},
            "vision_config": {"model_type": "clip_vision_model", **IMAGE_TOWER},
            "image_token_index": 3,
        },
        "image_tokens",
    ),
    # Series of numbers.
    "patchtst": A(
        "PatchTSTForPrediction",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "prediction_length": 4,
            "d_model": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 32,
        },
        "series",
        "prediction_outputs",
    ),
    "decision": A(
        "DecisionTransformerModel",
        {
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "state_dim": 5,
            "act_dim": 3,
            "max_ep_len": 16,
        },
        "decisions",
        "action_preds",
    ),
}


def tokens(random: Any, count: int) -> Any:
    import torch

    return torch.randint(3, WORDS, (count, LENGTH), generator=random)


def numbers(*shape: int) -> Callable[[Any, int], Any]:
    import torch

    return lambda random, count: torch.randn(count, *shape, generator=random, dtype=torch.float64)


def all_there(random: Any, count: int) -> Any:
    import torch

    return torch.ones(count, LENGTH, dtype=torch.int64)


def steps_of_a_game(random: Any, count: int) -> Any:
    import torch

    return torch.arange(4).repeat(count, 1)


def tokens_after_an_image(random: Any, count: int) -> Any:
    """16 places that an image's patches take, then words."""
    import torch

    places = torch.full((count, 16), 3)
    return torch.cat([places, tokens(random, count) % (WORDS - 4) + 4], dim=1)


def inputs_of(takes: str) -> dict[str, Callable[[Any, int], Any]]:
    """How each keyword argument of a model is made, for an architecture that takes these."""
    image = numbers(3, 32, 32)
    return {
        "tokens": {"input_ids": tokens},
        "pair": {"input_ids": tokens, "decoder_input_ids": tokens},
        "masked_pair": {
            "input_ids": tokens,
            "attention_mask": all_there,
            "decoder_input_ids": tokens,
            "decoder_attention_mask": all_there,
        },
        "image": {"pixel_values": image},
        "text_and_image": {"input_ids": tokens, "pixel_values": image},
        "image_tokens": {"input_ids": tokens_after_an_image, "pixel_values": image},
        "sound": {"input_values": numbers(400)},
        "patches": {"input_values": numbers(32, 16)},
        "spectrum": {"input_features": numbers(8, 32), "decoder_input_ids": tokens},
        "frames": {"input_features": numbers(32, 8), "decoder_input_ids": tokens},
        "series": {"past_values": numbers(16, 2)},
        "decisions": {
            "states": numbers(4, 5),
            "actions": numbers(4, 3),
            "returns_to_go": numbers(4, 1),
            "timesteps": steps_of_a_game,
        },
    }[takes]


def loss_of(gives: str) -> tuple[Callable[[Any, int], Any], Callable[[Any, Any], Any]]:
    """How targets are made, and the loss of a model's output."""
    import torch
    import torch.nn.functional as F

    def words(outputs: Any, target: Any) -> Any:
        logits = outputs["logits"][:, -target.shape[1] :]
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    def classes(outputs: Any, target: Any) -> Any:
        return F.cross_entropy(outputs["logits"], target)

    def pairs(outputs: Any, target: Any) -> Any:
        """Features of text and image of a sample are to be as near as the target says."""
        found = outputs["text_embeds"] * outputs["image_embeds"]
        return (found.sum(-1) - target).square().mean()

    def ctc(outputs: Any, target: Any) -> Any:
        logits = outputs["logits"].log_softmax(-1).transpose(0, 1)
        times = torch.full((target.shape[0],), logits.shape[0])
        return F.ctc_loss(logits, target[:, :4], times, torch.full((target.shape[0],), 4))

    def features(outputs: Any, target: Any) -> Any:
        return (outputs[gives].flatten(1).sin().mean(1) - target).square().mean()

    def labels(random: Any, count: int) -> Any:
        return torch.randint(5, (count,), generator=random)

    known = {
        "words": (tokens, words),
        "classes": (labels, classes),
        "ctc": (tokens, ctc),
        "pairs": (numbers(), pairs),
    }
    return known.get(gives, (numbers(), features))


def build(name: str) -> Any:
    """The model of an architecture in float64, without dropout, with random weights."""
    import torch
    import transformers

    architecture = ARCHITECTURES[name]
    model_class = getattr(transformers, architecture.model)
    config = model_class.config_class(**architecture.config)
    for part in configs_of(config):
        for key, value in vars(part).items():
            if isinstance(value, float) and "drop" in key:
                setattr(part, key, 0.0)
        if hasattr(part, "use_cache"):
            part.use_cache = False
    torch.manual_seed(0)
    model = model_class(config).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # some start as zeros, and hide what follows them
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model.train()


def configs_of(config: Any) -> Iterator[Any]:
    """A configuration and those within it."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from configs_of(value)


def batches_of(name: str, count: int) -> tuple[list[str], list[Any]]:
    """The names of the fields of an architecture's data, and `count` batches of each."""
    import torch

    architecture = ARCHITECTURES[name]
    random = torch.Generator().manual_seed(2)
    makers = {**inputs_of(architecture.takes), "target": loss_of(architecture.gives)[0]}
    return list(makers), [make(random, count * BATCH) for make in makers.values()]


@dataclass(frozen=True)
class Outcome:
    """What came of one architecture."""

    name: str
    verdict: str
    parameters: int = 0
    seconds: float = 0.0
    difference: float | None = None
    any_batch: bool | None = None
    reason: str = ""


def compare(name: str, tolerance: float) -> Outcome:
    """Import an architecture, train it in Purine and in PyTorch, and compare."""
    from purine.errors import PurineError
    from purine.importers.torch import from_torch

    model = build(name)
    count = sum(value.numel() for value in model.parameters())
    fields, values = batches_of(name, STEPS)
    example = {key: value[:BATCH] for key, value in zip(fields, values, strict=True)}
    loss = loss_of(ARCHITECTURES[name].gives)[1]
    began = time.perf_counter()
    try:
        imported = from_torch(model, loss, example, targets=("target",))
    except PurineError as error:
        seconds = time.perf_counter() - began
        reason = re.sub(r"\S*/site-packages/", "", " ".join(str(error).split()))
        return Outcome(name, "refused", count, seconds, reason=reason)
    seconds = time.perf_counter() - began
    losses, states, tested = trained_by_purine(imported, fields, values)
    expected, tested_there = trained_by_torch(model, loss, fields, values)
    difference = max(
        distance(losses, expected),
        distance(tested, tested_there),
        *(distance(states[key], value) for key, value in model.state_dict().items()),
    )
    if losses[0] == losses[-1]:
        return Outcome(name, "failed", count, seconds, difference, reason="the loss stays as it is")
    fixed = any(op.kind == "FixedBatch" for op in imported.net.ops.values())
    verdict = "agree" if difference <= tolerance else "wrong"
    return Outcome(name, verdict, count, seconds, difference, not fixed)


def trained_by_purine(
    imported: Any, fields: list[str], values: list[Any]
) -> tuple[list[float], dict[str, Any], float]:
    """Losses, state dict and test loss of a run."""
    import purine as pu
    from purine.data import ArraySource, DataSet

    source = ArraySource(*values, names=tuple(fields))
    test = ArraySource(*(value[:BATCH] for value in values), names=tuple(fields))
    step = pu.solvers.sgd(pu.backward(imported.net), lr=LR)
    with pu.Run(step, data=DataSet("zoo", source, test), seed=0) as run:
        run.set_states(imported.values)
        losses = [float(result.loss) for result in run.steps(STEPS)]
        return losses, imported.state_dict(run), float(run.evaluate(imported.test)["loss"])


def trained_by_torch(
    model: Any, loss: Callable[[Any, Any], Any], fields: list[str], values: list[Any]
) -> tuple[list[float], float]:
    """Losses of PyTorch's own loop over the batches that a run reads, and its loss in test mode."""
    import torch

    from purine.data import ArraySource, Reader

    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # torch's products of groups have no float64
    source = ArraySource(*values, names=tuple(fields))
    reader = Reader(source, batch=BATCH, seed=0, shuffle=True)
    solver = torch.optim.SGD(model.parameters(), lr=LR)

    def loss_on(batch: Any) -> Any:
        *inputs, target = batch
        return loss(model(**dict(zip(fields, inputs, strict=False))), target)

    losses = []
    for step in range(STEPS):
        found = loss_on(reader.read(step))
        solver.zero_grad()
        found.backward()
        solver.step()
        losses.append(found.item())
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model.eval()
    with torch.no_grad():
        tested = float(loss_on([value[:BATCH] for value in values]))
    model.load_state_dict(state)  # RWKV rescales its weights in test mode
    return losses, tested


def distance(found: Any, expected: Any) -> float:
    """The largest difference, relative to values above 1; what is no number differs infinitely."""
    import torch

    one, two = (torch.as_tensor(value, dtype=torch.float64) for value in (found, expected))
    if one.numel() == 0:
        return 0.0
    far = ((one - two).abs() / two.abs().clamp(min=1.0)).max().item()
    return far if far == far else float("inf")


def work(options: argparse.Namespace) -> None:
    """Compare the architectures whose names come in, and tell each outcome in one line."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what models print is no answer
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        name = line.strip()
        try:
            outcome = compare(name, options.tolerance)
        except Exception as error:
            if options.trace:
                raise
            text = " ".join(str(error).split())
            outcome = Outcome(name, "failed", reason=f"{type(error).__name__}: {text}")
        print(json.dumps(asdict(outcome)), file=answers, flush=True)


class Worker:
    """A process that compares one architecture after the other; stopped if one takes too long."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.process: subprocess.Popen[str] | None = None

    def outcome(self, name: str) -> Outcome:
        process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        ended = threading.Timer(self.options.limit, process.kill)
        ended.start()
        began = time.perf_counter()
        try:
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            ended.cancel()
        if line:
            return Outcome(**json.loads(line))
        self.stop()
        seconds = time.perf_counter() - began
        late = seconds >= self.options.limit
        reason = f"more than {self.options.limit:.0f} s" if late else "its process ended"
        return Outcome(name, "failed", seconds=seconds, reason=reason)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--worker", "--tolerance", str(self.options.tolerance)]
        command += ["--trace"] if self.options.trace else []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self.options.trace else subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        return self.process


def compare_all(names: list[str], options: argparse.Namespace) -> dict[str, Outcome]:
    """The outcomes of several architectures, by `options.jobs` workers."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    outcomes: dict[str, Outcome] = {}

    def serve() -> None:
        worker = Worker(options)
        try:
            while True:
                name = waiting.get_nowait()
                outcome = outcomes[name] = worker.outcome(name)
                text = f"[{len(outcomes)}/{len(names)}] {name}: {outcome.verdict} {outcome.reason}"
                print(text[:160], file=sys.stderr, flush=True)
        except queue.Empty:
            pass
        finally:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(min(options.jobs, len(names)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: outcomes[name] for name in names if name in outcomes}


def report(outcomes: Mapping[str, Outcome], options: argparse.Namespace) -> None:
    import torch
    import transformers

    print(
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, float64, {STEPS} steps of SGD"
    )
    print("| architecture | parameters | import s | any batch | largest difference | verdict |")
    print("|---|---|---|---|---|---|")
    for outcome in outcomes.values():
        far = "" if outcome.difference is None else f"{outcome.difference:.1e}"
        follows = "" if outcome.any_batch is None else "yes" if outcome.any_batch else "no"
        verdict = f"{outcome.verdict}: {outcome.reason}" if outcome.reason else outcome.verdict
        print(
            f"| {outcome.name} | {outcome.parameters:,} | {outcome.seconds:.1f} | {follows} "
            f"| {far} | {verdict.replace('|', '/')} |"
        )
    counts = {
        verdict: [outcome.name for outcome in outcomes.values() if outcome.verdict == verdict]
        for verdict in ("agree", "refused", "wrong", "failed")
    }
    differences = [o.difference for o in outcomes.values() if o.verdict == "agree"]
    result = {
        "architectures": len(outcomes),
        "imported": len(counts["agree"]) + len(counts["wrong"]),
        "agree": len(counts["agree"]),
        "refused": counts["refused"],
        "wrong": counts["wrong"],
        "failed": counts["failed"],
        "largest_difference": max((d for d in differences if d is not None), default=None),
        "import_seconds": round(sum(outcome.seconds for outcome in outcomes.values()), 1),
    }
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these architectures alone")
    parser.add_argument("--list", action="store_true", help="print the architectures and stop")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: 1)")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds for one architecture (default: 300)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-5, help="largest difference (default: 1e-5)"
    )
    parser.add_argument("--trace", action="store_true", help="show what models and errors print")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; expected 1 or more")
    if options.limit <= 0:
        parser.error(f"--limit is {options.limit:g}; expected more than 0 seconds")
    unknown = [name for name in options.only or () if name not in ARCHITECTURES]
    if unknown:
        parser.error(f"--only: there is no {', '.join(unknown)}; --list names what there is")
    if options.worker:
        work(options)
    elif options.list:
        for name, architecture in ARCHITECTURES.items():
            print(f"{name:20} {architecture.model}")
    else:
        try:
            import transformers  # noqa: F401
        except ImportError:
            parser.exit(2, "this benchmark needs transformers: pip install transformers\n")
        report(compare_all(options.only or list(ARCHITECTURES), options), options)


if __name__ == "__main__":
    main()
