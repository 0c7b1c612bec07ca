"""Lists and sequences of modules change as in PyTorch; parts are registered and found by name."""

import copy
import pickle

import pytest

import glade
from glade import nn, optim


def names(module):
    return [name for name, _ in module.named_parameters()]


def layers(count):
    return [nn.Linear(i + 1, 1, bias=False) for i in range(count)]


def test_module_lists_change():
    a, b, c, d = layers(4)
    modules = nn.ModuleList([a])
    assert modules.extend([b, c]) is modules and list(modules) == [a, b, c]
    modules.insert(1, d)
    assert list(modules) == [a, d, b, c] and names(modules) == [f"{i}.weight" for i in range(4)]
    modules[-1] = a
    assert modules[3] is a and dict(modules.named_children())["3"].in_features == 1 and modules.state_dict()["1.weight"].shape == (1, 4)
    assert list(modules[1:3]) == [d, b] and isinstance(modules[1:3], nn.ModuleList)
    with pytest.raises(TypeError, match="ModuleList: expected a module, got int"):
        modules.extend([a, 3])
    with pytest.raises(IndexError):
        modules[7] = a
    assert len(modules) == 4
    again = pickle.loads(pickle.dumps(modules))
    assert names(again) == names(modules) and again[0] is again[3]


def test_sequential_grows_and_is_cut():
    a, b = layers(2)
    model = nn.Sequential(a, glade.tanh)
    assert model.append(nn.ReLU()) is model and len(model) == 3
    x = glade.tensor([[2.0]])
    assert model(x).tolist() == model[0](x).tanh().relu().tolist()
    assert isinstance(model[:2], nn.Sequential) and model[:2](x).tolist() == a(x).tanh().tolist()
    with pytest.raises(TypeError, match="Sequential: expected modules and functions, got int"):
        model.append(3)


def test_sequential_of_a_dict_has_its_names():
    a, b = layers(2)
    model = nn.Sequential({"first": a, "act": glade.tanh, "last": nn.Linear(1, 2)})
    assert names(model) == ["first.weight", "last.weight", "last.bias"] and model.first is a and model[0] is a
    assert repr(model).splitlines()[2] == "  (act): tanh"
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        x = glade.ones(3, 1)
        assert again(x).tolist() == model(x).tolist() and names(again) == names(model) and repr(again) == repr(model)
    assert names(model[1:]) == ["last.weight", "last.bias"] and names(model[:0]) == []
    with pytest.raises(ValueError, match="'forward' is the name of a method"):
        nn.Sequential({"forward": a})


def test_slices_of_a_sequential_keep_names_and_grow():
    tail = nn.Sequential(*layers(3))[1:]
    assert names(tail) == ["1.weight", "2.weight"]
    tail.append(nn.Linear(1, 1, bias=False))
    assert names(tail) == ["1.weight", "2.weight", "3.weight"] and len(tail) == 3


def test_module_dicts_give_modules_up():
    a, b = layers(2)
    modules = nn.ModuleDict({"a": a, "b": b})
    assert modules.pop("a") is a and list(modules) == ["b"] and names(modules) == ["b.weight"]
    with pytest.raises(KeyError):
        modules.pop("a")


def test_parts_by_name():
    model = nn.Module()
    weight, inner = nn.Parameter(glade.ones(2)), nn.Sequential(*layers(2))
    model.register_parameter("weight", weight)
    model.add_module("inner", inner)
    model.register_module("again", inner[0])
    model.register_parameter("none", None)
    assert model.weight is weight and model.inner is inner and model.none is None
    assert names(model) == ["weight", "inner.0.weight", "inner.1.weight"]
    assert model.get_submodule("inner.1") is inner[1] and model.get_submodule("") is model
    assert model.get_parameter("inner.0.weight").is_same(inner[0].weight) and model.get_parameter("weight") is weight
    with pytest.raises(AttributeError, match="get_parameter: .inner. is a Sequential"):
        model.get_parameter("inner")
    with pytest.raises(AttributeError, match="has no attribute 'x'"):
        model.get_submodule("inner.x")
    with pytest.raises(TypeError, match="register_parameter: expected a parameter, such as nn.Parameter"):
        model.register_parameter("wrong", glade.ones(2))
    with pytest.raises(TypeError, match="expected a module, got a Tensor"):
        model.add_module("wrong", glade.ones(2))
    assert not hasattr(model, "wrong")


def test_a_group_of_one_tensor():
    layer = nn.Linear(2, 3)
    optimizer = optim.Adam([{"params": layer.weight, "lr": 0.5}, {"params": [layer.bias]}], lr=0.1)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1] and optimizer.param_groups[0]["params"][0] is not layer.bias
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1] and optimizer.param_groups[1].param_names == ["1"]


def test_kaiming_by_what_an_input_goes_to():
    glade.manual_seed(0)
    x = glade.empty(4000, 10, 5)
    fan_out = 4000 * 5
    assert nn.init.kaiming_normal_(x, mode="fan_out", nonlinearity="relu").std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)
    assert nn.init.kaiming_uniform_(x, mode="fan_out", nonlinearity="linear").abs().max().item() == pytest.approx((3 / fan_out) ** 0.5, rel=0.01)
    with pytest.raises(glade.ValueError, match="mode is 'fan', expected 'fan_in' or 'fan_out'"):
        nn.init.kaiming_normal_(x, mode="fan")


def test_kl_divergence_of_a_batch():
    x, y = glade.randn(3, 4).log_softmax(1), glade.randn(3, 4).softmax(1)
    loss = nn.KLDivLoss(reduction="batchmean")
    assert loss(x, y).item() == pytest.approx(glade.kl_div(x, y, "sum").item() / 3) and "batchmean" in repr(loss)
    assert copy.deepcopy(loss)(x, y).item() == loss(x, y).item()
    with pytest.raises(glade.ValueError, match="reduction is 'some'"):
        nn.KLDivLoss(reduction="some")
