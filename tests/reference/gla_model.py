"""A GLA language model in float64 NumPy, from a config and tensors as fla publishes them: what a load must give.

`logits(config, tensors, ids)` reads the tensors by their published names, both layouts of the MLP's inputs (one matrix
`mlp.gate_proj`, gate above up, or `gate_proj` and `up_proj`) and of the output's norm among them.
"""
import gated_recurrence
import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


FEATURE_MAPS = {None: lambda x: x, "relu": lambda x: np.maximum(x, 0), "swish": silu, "silu": silu}


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * (1 if weight is None else weight)


def short_convolution(x, weight, bias):
    """silu of a causal depthwise convolution; x [B, T, D], weight [D, 1, W]."""
    width = weight.shape[-1]
    padded = np.pad(x, ((0, 0), (width - 1, 0), (0, 0)))
    y = sum(padded[:, i:i + x.shape[1]] * weight[:, 0, i] for i in range(width))
    return silu(y if bias is None else y + bias)


def attention(config, part, x):
    heads, hidden, eps = config["num_heads"], config["hidden_size"], config["norm_eps"]
    kv_heads = config.get("num_kv_heads") or heads
    K, V = (int(hidden * config[name]) // heads for name in ("expand_k", "expand_v"))
    q, k, v = (x @ part(f"{name}_proj.weight").T for name in "qkv")
    if config.get("use_short_conv"):
        q, k, v = (short_convolution(y, part(f"{name}_conv1d.weight"), part(f"{name}_conv1d.bias", None)) for name, y in zip("qkv", (q, k, v)))
    gate = x @ part("gk_proj.0.weight").T @ part("gk_proj.1.weight").T + part("gk_proj.1.bias")
    gk = -np.logaddexp(0, -gate) / 16
    if config.get("clamp_min") is not None:
        gk = np.maximum(gk, config["clamp_min"])

    rows = x.shape[:2]
    feature_map = FEATURE_MAPS[config.get("feature_map")]
    q, k = feature_map(q.reshape(*rows, heads, K)), feature_map(k.reshape(*rows, kv_heads, K))
    gk = np.repeat(gk.reshape(*rows, kv_heads, K), heads // kv_heads, axis=2)
    o, _ = gated_recurrence.forward(q, k, v.reshape(*rows, kv_heads, V), gk=gk)

    fused, plain = part("g_norm_swish_gate.weight", None), part("g_norm.weight", None)
    o = rms_norm(o, fused if plain is None else plain, eps).reshape(*rows, heads * V)
    if config.get("use_output_gate", True):
        o = o * silu(x @ part("g_proj.weight").T)
    return o @ part("o_proj.weight").T


def mlp(part, x):
    gate, up = part("gate_proj.weight"), part("up_proj.weight", None)
    if up is None:
        gate, up = np.split(gate, 2)
    return (silu(x @ gate.T) * (x @ up.T)) @ part("down_proj.weight").T


def logits(config, tensors, ids):
    config = dict(config)
    config.setdefault("norm_eps", config.get("rms_norm_eps", 1e-6))

    def parts(prefix):
        def part(name, *default):
            x = tensors.get(prefix + name, *default) if default else tensors[prefix + name]
            return None if x is None else np.asarray(x, np.float64)

        return part

    model = parts("model.")
    x = model("embeddings.weight")[ids]
    for i in range(config["num_hidden_layers"]):
        layer = parts(f"model.layers.{i}.")
        x = x + attention(config, parts(f"model.layers.{i}.attn."), rms_norm(x, layer("attn_norm.weight"), config["norm_eps"]))
        x = x + mlp(parts(f"model.layers.{i}.mlp."), rms_norm(x, layer("mlp_norm.weight"), config["norm_eps"]))
    head = model("embeddings.weight") if config["tie_word_embeddings"] else parts("")("lm_head.weight")
    return rms_norm(x, model("norm.weight"), config["norm_eps"]) @ head.T
