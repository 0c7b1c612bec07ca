"""Published models in the fields, names and layouts of their uploads, at small sizes, against a float64 reference.

The configs hold what fla's GLAConfig and transformers wrote when the models were uploaded: the 1.3 B and 2.7 B models before
April 2024 (rms_norm_eps, share_conv_kernel), the 340 M one later; only the sizes are smaller.
"""

import json
import logging

import gla_model
import numpy as np
import pytest

import glade
from conftest import to_numpy
from glade.nn import models

SIZES = dict(hidden_size=64, num_heads=4, num_hidden_layers=2, vocab_size=97)
EARLY_2024 = {
    "architectures": ["GLAForCausalLM"],
    "attn_mode": "fused_chunk",
    "bos_token_id": 1,
    "clamp_min": None,
    "conv_size": 4,
    "eos_token_id": 2,
    "expand_k": 0.5,
    "expand_v": 1,
    "fuse_cross_entropy": True,
    "fuse_norm": True,
    "hidden_act": "swish",
    "hidden_ratio": 4,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": None,
    "max_position_embeddings": 2048,
    "model_type": "gla",
    "num_heads": 4,
    "num_hidden_layers": 24,
    "rms_norm_eps": 1e-06,
    "share_conv_kernel": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.39.1",
    "use_cache": True,
    "use_gk": True,
    "use_gv": False,
    "use_short_conv": False,
    "vocab_size": 32000,
}
LATER = {key: value for key, value in EARLY_2024.items() if key not in ("rms_norm_eps", "share_conv_kernel")} | {
    "attn": None,
    "attn_mode": "chunk",
    "elementwise_affine": True,
    "feature_map": None,
    "hidden_size": 1024,
    "norm_eps": 1e-06,
    "num_kv_heads": None,
    "tie_word_embeddings": True,
    "transformers_version": "4.45.0",
    "use_output_gate": True,
}
PUBLISHED = {
    "gla-1.3B-100B": EARLY_2024,
    "gla-2.7B-100B": EARLY_2024 | {"hidden_size": 2560, "num_heads": 5, "num_hidden_layers": 32},
    "gla-340M-15B": LATER,
}
VARIANTS = {
    "kv_heads": {"num_kv_heads": 2},
    "relu": {"feature_map": "relu"},
    "swish": {"feature_map": "swish"},
    "convolutions": {"use_short_conv": True},
    "convolutions_with_bias": {"use_short_conv": True, "conv_bias": True},
    "everything": {"use_short_conv": True, "conv_bias": True, "feature_map": "swish", "num_kv_heads": 1, "clamp_min": -0.05},
    "separate_norm": {"fuse_norm": False},
}
IDS = np.random.default_rng(1).integers(0, 97, (2, 40))


def make_tensors(config, joint, rng):
    """Random tensors with the names and shapes of fla's state dict; `joint` is the MLP's layout of before February 2025."""
    hidden, heads = config["hidden_size"], config["num_heads"]
    groups = heads // (config.get("num_kv_heads") or heads)
    K, V = int(hidden * config["expand_k"]), int(hidden * config["expand_v"])
    inner = 256 * -(-int(hidden * 4 * 2 / 3) // 256)
    shapes = {"model.embeddings.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        attn, mlp = f"model.layers.{i}.attn.", f"model.layers.{i}.mlp."
        widths = {"q": K, "k": K // groups, "v": V // groups}
        for name, width in widths.items():
            shapes[f"{attn}{name}_proj.weight"] = (width, hidden)
            if config["use_short_conv"]:
                shapes[f"{attn}{name}_conv1d.weight"] = (width, 1, config["conv_size"])
            if config.get("conv_bias"):
                shapes[f"{attn}{name}_conv1d.bias"] = (width,)
        shapes |= {f"{attn}g_proj.weight": (V, hidden), f"{attn}o_proj.weight": (hidden, V)}
        shapes |= {f"{attn}gk_proj.0.weight": (16, hidden), f"{attn}gk_proj.1.weight": (K // groups, 16), f"{attn}gk_proj.1.bias": (K // groups,)}
        shapes[attn + ("g_norm_swish_gate" if config["fuse_norm"] else "g_norm") + ".weight"] = (V // heads,)
        shapes |= {f"{mlp}gate_proj.weight": (2 * inner if joint else inner, hidden), f"{mlp}down_proj.weight": (hidden, inner)}
        if not joint:
            shapes[f"{mlp}up_proj.weight"] = (inner, hidden)
        shapes |= {f"model.layers.{i}.attn_norm.weight": (hidden,), f"model.layers.{i}.mlp_norm.weight": (hidden,)}
    return {name: (rng.standard_normal(shape) * (0.1 if len(shape) > 1 else 0.3)).astype(np.float32) for name, shape in shapes.items()}


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": x.shape, "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(x.tobytes() for x in tensors.values()))


def publish(folder, config, tensors, shards=1):
    """A folder as transformers' save_pretrained writes it. Its configs do not say whether convolutions have biases."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "conv_bias"}, indent=2))
    if shards == 1:
        return write_safetensors(folder / "model.safetensors", tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[i::shards]}
        write_safetensors(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(x.nbytes for x in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def assert_logits(model, expected):
    """As far as float32 goes: the rounding of 2^-24 of some dozens of sums in a row."""
    result = to_numpy(model(glade.tensor(IDS)))
    assert np.abs(result - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("joint", [True, False], ids=["joint", "separate"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_load(name, joint, shards, rng, tmp_path, caplog, recwarn):
    caplog.set_level(logging.INFO, "glade")
    config = PUBLISHED[name] | SIZES
    if name == "gla-2.7B-100B":
        config |= {"hidden_size": 80, "num_heads": 5}
    tensors = make_tensors(config, joint, rng)
    publish(tmp_path / "model", config, tensors, shards)
    model = models.GLAForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    expected = gla_model.logits(config, tensors, IDS)
    assert_logits(model, expected)
    note = f"{tmp_path / 'model'}: the MLP's two inputs are one matrix, gate_proj, as fla wrote them before February 2025"
    assert [x.partition(";")[0] for x in caplog.messages] == ([note] if joint else [])
    caplog.clear()
    assert not recwarn.list

    model.save_pretrained(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert written["norm_eps"] == 1e-6 and "rms_norm_eps" not in written
    assert all(written[key] == value for key, value in config.items() if key not in ("rms_norm_eps", "torch_dtype"))
    again = models.GLAForCausalLM.from_pretrained(tmp_path / "saved")
    assert not caplog.messages  # what is saved is separate
    assert_logits(again, expected)


@pytest.mark.parametrize("base", ["gla-1.3B-100B", "gla-340M-15B"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_load(variant, base, rng, tmp_path):
    config = PUBLISHED[base] | SIZES | VARIANTS[variant]
    tensors = make_tensors(config, base == "gla-1.3B-100B", rng)
    publish(tmp_path / "model", config, tensors)
    model = models.GLAForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    expected = gla_model.logits(config, tensors, IDS)
    assert_logits(model, expected)
    model.save_pretrained(tmp_path / "saved")
    assert_logits(models.GLAForCausalLM.from_pretrained(tmp_path / "saved"), expected)


def test_norm_eps_has_an_older_name(rng, tmp_path):
    config = EARLY_2024 | SIZES | {"rms_norm_eps": 0.3}
    tensors = make_tensors(config, True, rng)
    publish(tmp_path / "model", config, tensors)
    assert_logits(models.GLAForCausalLM.from_pretrained(tmp_path / "model", dtype="float32"), gla_model.logits(config, tensors, IDS))
    publish(tmp_path / "both", config | {"norm_eps": 1e-6}, tensors)
    with pytest.raises(glade.CheckpointError, match="norm_eps is 1e-06, but rms_norm_eps, its older name, is 0.3: remove one"):
        models.GLAForCausalLM.from_pretrained(tmp_path / "both")


def test_unknown_fields_that_change_nothing_give_a_warning(rng, tmp_path):
    config = LATER | SIZES
    tensors = make_tensors(config, False, rng)
    unknown = {"tokenizer_class": "LlamaTokenizer", "temperature": 0.7, "fuse_something": True, "window_size": None}
    publish(tmp_path / "model", config | unknown, tensors)
    with pytest.warns(UserWarning, match="model/config.json: passing over .*: fuse_something, temperature, tokenizer_class, window_size$"):
        model = models.GLAForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    assert_logits(model, gla_model.logits(config, tensors, IDS))
    model.save_pretrained(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert {key: written[key] for key in unknown} == unknown


@pytest.mark.parametrize("field", [{"gate_fn": "gelu"}, {"residual_scale": 0.5}, {"rope_theta": 1e4}, {"anything": 1}])
def test_unknown_fields_that_may_change_something_are_errors(field, rng, tmp_path):
    config = LATER | SIZES
    publish(tmp_path / "model", config | field, make_tensors(config, False, rng))
    with pytest.raises(glade.CheckpointError, match=f"unknown field '{next(iter(field))}'.*, which may change the logits"):
        models.GLAForCausalLM.from_pretrained(tmp_path / "model")


def test_models_made_in_python_take_known_fields_only():
    with pytest.raises(ValueError, match="unknown field 'temperature'"):
        models.GLAForCausalLM(temperature=0.5)
