"""Modules as Python objects: what they print, their parts, copies and pickles, tied weights, and that cycles are freed."""

import copy
import gc
import pickle
import weakref

import pytest
from conftest import DEVICES, to_numpy

import glade
from glade import nn, optim


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(glade.ones(3))
        self.register_buffer("count", glade.zeros(1))
        self.note = ["text"]

    def forward(self, x):
        return self.linear(x) * self.scale


def make_model():
    return nn.Sequential(Block(), glade.tanh, nn.RMSNorm(3), nn.Dropout(0.5), nn.Embedding(4, 5, padding_idx=-1))


# ---- what they print -------------------------------------------------------------------------------------------------


def test_repr():
    assert repr(nn.Linear(2, 3, bias=False)) == "Linear(in_features=2, out_features=3, bias=False)"
    assert repr(nn.Dropout(0.25)) == "Dropout(p=0.25)" and repr(nn.Embedding(4, 5)) == "Embedding(num_embeddings=4, embedding_dim=5)"
    assert repr(make_model()) == (
        "Sequential(\n"
        "  (0): Block(\n"
        "    scale [3], count [1]\n"
        "    (linear): Linear(in_features=3, out_features=3, bias=True)\n"
        "  )\n"
        "  (1): tanh\n"
        "  (2): RMSNorm(normalized_shape=3, eps=1e-05, elementwise_affine=True)\n"
        "  (3): Dropout(p=0.5)\n"
        "  (4): Embedding(num_embeddings=4, embedding_dim=5, padding_idx=3)\n"
        ")"
    )
    blocks = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 2)])
    assert "(0-1): 2 x Linear(in_features=1, out_features=1, bias=True)\n  (2): Linear(" in repr(blocks)

    class Named(nn.Module):
        def extra_repr(self):
            return "of my own"

    assert repr(Named()) == "Named(of my own)"
    model = nn.models.GLAForCausalLM(hidden_size=32, num_hidden_layers=3, num_heads=2)
    count = sum(x.numel() for x in model.parameters())
    assert repr(model).startswith(f"GLAForCausalLM(\n  parameters={count}, dtype=float32\n") and "(0-2): 3 x Block(" in repr(model)


def test_notebooks_show_a_tree():
    text = make_model()._repr_html_()
    assert text.startswith("<details style='margin-left:1em' open><summary><b>Sequential</b>() <small>38 parameters</small></summary>")
    assert text.count("<details") == 2 and "(linear): <b>Linear</b>(in_features=3, out_features=3, bias=True)" in text

    class Named(nn.Module):
        def extra_repr(self):
            return "<b>"

    assert Named()._repr_html_() == "<div style='margin-left:1em'><b>Named</b>(&lt;b&gt;) <small>0 parameters</small></div>"


def test_sizes_are_attributes():
    linear, norm = nn.Linear(2, 3), nn.LayerNorm([4], eps=1e-3)
    assert (linear.in_features, linear.out_features) == (2, 3) and (norm.normalized_shape, norm.eps) == (4, 1e-3)
    assert nn.Embedding(4, 5).padding_idx is None and nn.Embedding(4, 5, padding_idx=-1).padding_idx == 3
    assert nn.GatedLinearAttention(8, num_heads=2).num_heads == 2
    linear.tag = "an attribute of one's own"
    assert linear.tag.startswith("an")
    with pytest.raises(glade.ValueError, match="normalized_shape is \\[2, 3\\], expected one size"):
        nn.LayerNorm((2, 3))
    with pytest.raises(glade.IndexError, match="padding_idx"):
        nn.Embedding(4, 5, padding_idx=-5)


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_parts():
    model = make_model()
    assert [type(m).__name__ for m in model.children()] == ["Block", "RMSNorm", "Dropout", "Embedding"]
    assert len(model.modules()) == 6 and model.modules()[0] is model and model.modules()[2] is model[0].linear
    assert [name for name, _ in model.named_buffers()] == ["0.count"] and model.buffers()[0].is_same(model[0].count)
    seen = []
    assert model.apply(seen.append) is model
    assert [type(m).__name__ for m in seen] == ["Linear", "Block", "RMSNorm", "Dropout", "Embedding", "Sequential"]
    shared = nn.Linear(1, 1)
    assert len(nn.Sequential(shared, shared).modules()) == 2
    block = model[0]
    block(glade.ones(2, 3)).sum().backward()
    before = block.scale.grad
    model.zero_grad(set_to_none=False)
    assert block.scale.grad.is_same(before) and before.tolist() == [0, 0, 0]
    model.zero_grad()
    assert block.scale.grad is None


@pytest.mark.parametrize("device", DEVICES)
def test_conversions(device):
    model = Block()
    weight = model.linear.weight
    for name, dtype in [("half", glade.float16), ("bfloat16", glade.bfloat16), ("double", glade.float64), ("float", glade.float32)]:
        assert getattr(model, name)() is model and weight.dtype is dtype and model.count.dtype is dtype
    assert model.to(device, glade.float64) is model and weight.device == device and weight.dtype is glade.float64
    if device == "cuda":
        assert model.cpu() is model and weight.device == "cpu" and model.cuda() is model and weight.device == "cuda"
    else:
        assert model.cpu() is model and weight.device == "cpu"


# ---- tied weights ----------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


def test_tying_by_assignment():
    model = Tied()
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight"]
    assert set(model.state_dict()) == {"embedding.weight", "head.weight"} and model.head.weight.is_same(model.embedding.weight)
    optimizer = optim.SGD(model.named_parameters(), lr=0.1)
    ids = glade.tensor([1, 2])
    before = model(ids)
    glade.cross_entropy(before, glade.tensor([0, 5])).backward()
    optimizer.step()
    expected = to_numpy(model.embedding.weight)[[1, 2]] @ to_numpy(model.embedding.weight).T
    assert abs(to_numpy(model(ids)) - expected).max() < 1e-5 and model(ids).tolist() != before.tolist()
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again.head.weight.is_same(again.embedding.weight) and not again.head.weight.is_same(model.head.weight)
        assert again(ids).tolist() == model(ids).tolist() and len(again.parameters()) == 1


def test_assigned_parameters():
    linear = nn.Linear(2, 3, bias=False)
    weight = nn.Parameter(glade.ones(3, 2))
    linear.weight, linear.bias = weight, nn.Parameter(glade.ones(3))
    assert [name for name, _ in linear.named_parameters()] == ["weight", "bias"] and linear(glade.ones(1, 2)).tolist() == [[3, 3, 3]]
    linear.bias = None
    assert [name for name, _ in linear.named_parameters()] == ["weight"] and linear(glade.ones(1, 2)).tolist() == [[2, 2, 2]]
    for wrong in (glade.ones(3, 2), weight * 2, 3):
        with pytest.raises(TypeError, match="weight: expected a parameter"):
            linear.weight = wrong
    assert linear.weight.is_same(weight)


def test_what_an_attribute_was_it_stays():
    block = Block()
    block.count += 3
    block.count = block.count * 2
    assert [name for name, _ in block.named_buffers()] == ["count"] and block.state_dict()["count"].tolist() == [6]
    with pytest.raises(TypeError, match="scale: expected a parameter"):
        block.scale = block.scale * 2
    assert [name for name, _ in block.named_parameters()] == ["scale", "linear.weight", "linear.bias"]


def test_buffers_that_are_not_saved():
    module = nn.Sequential(Block())
    module[0].register_buffer("mask", glade.ones(2), persistent=False)
    module[0].mask = module[0].mask * 3
    for model in (module, copy.deepcopy(module)):
        assert [name for name, _ in model.named_buffers()] == ["0.count", "0.mask"] and "0.mask" not in model.state_dict()
        assert "0.count" in model.state_dict() and model[0].mask.tolist() == [3, 3]
        assert model.double()[0].mask.dtype is glade.float64
    module.load_state_dict(module.state_dict())


# ---- copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies(again):
    model = make_model().double()
    model[0].linear.requires_grad_(False)
    model[0].count += 3
    model.eval()
    other = again(model)
    assert repr(other) == repr(model) and not other.training and not other[0].linear.training
    assert [name for name, _ in other.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert [x.requires_grad for x in other.parameters()] == [x.requires_grad for x in model.parameters()]
    assert [name for name, _ in other.named_buffers()] == ["0.count"] and other[0].count.tolist() == [3]
    for name, x in model.state_dict().items():
        assert other.state_dict()[name].tolist() == x.tolist() and other.state_dict()[name].dtype is glade.float64
    other[0].note.append("more")
    with glade.no_grad():
        other[0].scale += 1
    assert model[0].note == ["text"] and model[0].scale.tolist() == [1, 1, 1]
    assert other[0](glade.ones(2, 3, dtype="float64")).shape == (2, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GatedLinearAttention(16, num_heads=4, num_kv_heads=2, use_short_conv=True, feature_map="relu", clamp_min=-3.0),
        lambda: nn.LightningAttention(8, 1, 3, num_heads=2),
        lambda: nn.GatedMLP(8, 16),
        lambda: nn.LayerNorm(8, bias=False),
        lambda: nn.RMSNorm(8, elementwise_affine=False),
    ],
)
def test_layers_are_copied(make):
    layer = make()
    other = pickle.loads(pickle.dumps(layer))
    x = glade.randn(1, 5, 16 if "num_kv_heads" in repr(layer) else 8)
    assert repr(other) == repr(layer) and other(x).tolist() == layer(x).tolist()


def test_models_are_copied():
    model = nn.models.GLAForCausalLM(hidden_size=32, num_hidden_layers=2, num_heads=2, tie_word_embeddings=True)
    other = copy.deepcopy(model)
    ids = glade.tensor([[1, 2, 3]])
    assert other.config == model.config and other(ids).tolist() == model(ids).tolist()
    assert other.lm_head.weight.is_same(other.model.embeddings.weight) and len(other.parameters()) == len(model.parameters())
    with pytest.raises(TypeError, match="a Block cannot be pickled or copied alone"):
        copy.deepcopy(model.model.layers[0])


def test_a_shallow_copy_shares_the_tensors():
    model = Block()
    other = copy.copy(model)
    assert other is not model and other.scale.is_same(model.scale) and other.linear is model.linear


# ---- cycles ----------------------------------------------------------------------------------------------------------


class Cyclic(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.linear = nn.Linear(300, 300)
        if kind == "method":
            self.f = self.forward
        elif kind == "parent":
            self.linear.parents = [self]
        elif kind == "function":
            self.steps = nn.Sequential(lambda x: self.linear(x))
        elif kind == "hook":
            self.modules_by_name = {"self": self}

    def forward(self, x):
        return self.linear(x)


class OwnLinear(nn.Linear):
    def __init__(self):
        super().__init__(300, 300)
        self.f = self.forward


@pytest.mark.parametrize("make", [*(lambda kind=kind: Cyclic(kind) for kind in ("method", "parent", "function", "hook")), OwnLinear])
def test_cycles_are_freed(make):
    gc.collect()
    references = []
    for _ in range(20):
        model = make()
        references += [weakref.ref(model), weakref.ref(model.parameters()[0] if isinstance(model, OwnLinear) else model.linear)]
    del model
    gc.collect()
    assert not any(reference() is not None for reference in references)


def test_cycles_leave_no_memory():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def make_and_drop():
        for _ in range(300):  # 108 MB
            Cyclic("method")
        gc.collect()

    make_and_drop()
    before = resident()
    for _ in range(3):
        make_and_drop()
    assert resident() - before < 50e6
