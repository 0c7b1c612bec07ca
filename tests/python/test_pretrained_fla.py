"""Published models beside fla itself: the same logits, both ways through files, for every field of the config.

Needs fla, and a GPU for its kernels; or Triton's interpreter (TRITON_INTERPRET=1) on the CPU.
"""

import json
import os
import pathlib

import numpy as np
import pytest

import glade
from conftest import to_numpy
from glade.nn import models
from glade.optim import AdamW

torch = pytest.importorskip("torch")
fla = pytest.importorskip("fla.models.gla")
FLA_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if FLA_DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("fla needs a GPU", allow_module_level=True)

DATA = pathlib.Path(__file__).parents[1] / "data"
NAMES = ["gla_base", "gla_conv_gqa"]
IDS = np.random.default_rng(3).integers(0, 97, (2, 70))

SMALL = dict(
    vocab_size=97, hidden_size=64, num_hidden_layers=2, num_heads=4, initializer_range=0.1, attn_mode="fused_recurrent", fuse_cross_entropy=False
)
CONFIGS = {
    "null": dict(hidden_ratio=None, elementwise_affine=None),
    "hidden_ratio": dict(hidden_ratio=8),
    "intermediate_size": dict(intermediate_size=96),
    "expand": dict(expand_k=1.0, expand_v=2.0),
    "without_gate": dict(use_output_gate=False),
    "without_affine": dict(elementwise_affine=False),
    "separate_norm": dict(fuse_norm=False, norm_eps=1e-3),
    "tied": dict(tie_word_embeddings=True, pad_token_id=5),
    "grouped": dict(num_kv_heads=1, use_short_conv=True, conv_size=3),
    "clamped": dict(clamp_min=-0.05, initializer_range=0.4),
    **{name: dict(feature_map=name) for name in ["relu", "sqrelu", "silu", "swish", "sigmoid", "logsigmoid", "gelu"]},
}


@pytest.fixture(params=["recurrent", "chunk"])
def algorithm(request):
    return request.param


def load(folder, device, algorithm="auto", dtype=None):
    model = models.GLAForCausalLM.from_pretrained(folder, device=device, dtype=dtype)
    model.set_algorithm(algorithm)
    return model


def logits(model, device, ids=IDS):
    return to_numpy(model(glade.tensor(ids).to(device)))


def fla_logits(model, ids=IDS):
    with torch.no_grad():
        return model.eval().to(FLA_DEVICE)(torch.tensor(ids, device=FLA_DEVICE)).logits.float().cpu().numpy()


def difference(a, b):
    """The largest difference over the largest value."""
    return float(np.abs(a - b).max() / np.abs(b).max())


def relative_error(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_means_what_it_means_to_fla(name, device, tmp_path):
    torch.manual_seed(0)
    published = fla.GLAForCausalLM(fla.GLAConfig(**{**SMALL, **CONFIGS[name]}))
    published.save_pretrained(tmp_path)
    if name == "null":  # which save_pretrained may leave out
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **CONFIGS[name]}))
    assert difference(logits(load(tmp_path, device), device), fla_logits(published)) < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_what_fla_saves_is_read(name, device, algorithm, tmp_path):
    published = fla.GLAForCausalLM.from_pretrained(DATA / name)
    published.save_pretrained(tmp_path, max_shard_size="200KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert difference(logits(load(tmp_path, device, algorithm), device), fla_logits(published)) < 1e-4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shard", [5_000_000_000, 150_000])
def test_fla_reads_what_is_saved(name, shard, device, tmp_path):
    model = load(DATA / name, device)
    before = logits(model, device)
    optimizer = AdamW(model.named_parameters(), lr=1e-2)
    ids = glade.tensor(IDS).to(device)
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    optimizer.step()
    model.save_pretrained(tmp_path, max_shard_bytes=shard)
    after = logits(model, device)
    published = fla.GLAForCausalLM.from_pretrained(tmp_path)
    assert difference(after, before) > 0.01
    assert difference(after, fla_logits(published)) < 1e-4
    for key, x in published.state_dict().items():
        assert x.dtype == torch.float32, key


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_as_close_as_flas(name, device, algorithm, record_property):
    """Each of fla's forms beside glade's."""
    ids = np.random.default_rng(4).integers(0, 97, (8, 300))
    mode = {"recurrent": "fused_recurrent", "chunk": "chunk"}[algorithm]
    exact = fla_logits(fla.GLAForCausalLM.from_pretrained(DATA / name), ids)
    theirs = fla_logits(fla.GLAForCausalLM.from_pretrained(DATA / name, dtype=torch.bfloat16, attn_mode=mode), ids)
    ours = logits(load(DATA / name, device, algorithm, "bfloat16"), device, ids)
    largest = {"glade": difference(ours, exact), "fla": difference(theirs, exact)}
    typical = {"glade": relative_error(ours, exact), "fla": relative_error(theirs, exact)}
    record_property("largest", largest)
    record_property("typical", typical)
    print(name, device, algorithm, largest, typical)
    assert typical["glade"] <= typical["fla"]
    assert largest["glade"] <= 1.2 * largest["fla"]  # one element of 232800 decides
