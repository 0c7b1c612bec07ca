"""Parts of modules: what is set on a module is what it computes with, in its order, and never less than what is registered."""

import copy
import pickle

import pytest

import glade
from glade import nn, optim


def names(module):
    return [name for name, _ in module.named_parameters()]


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(2, 2)


def language_model(**fields):
    return nn.models.GLAForCausalLM(**dict(hidden_size=16, num_hidden_layers=1, num_heads=2, vocab_size=11) | fields)


def test_objects_without_their_cpp_part_are_errors():
    class OwnModule(nn.Module):
        def __init__(self):
            self.parameters()

    class OwnLinear(nn.Linear):
        def __init__(self):
            self.forward(glade.ones(1, 2))

    class OwnOptimizer(optim.AdamW):
        def __init__(self):
            self.zero_grad()

    for make in (OwnModule, OwnLinear, OwnOptimizer, lambda: nn.Linear.__new__(nn.Linear).parameters()):
        with pytest.raises(AttributeError, match=r"super\(\).__init__\(\)"):
            make()


def test_replaced_parts_keep_their_place():
    model = Pair()
    model.a = nn.Linear(3, 3)
    expected = ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert names(model) == names(copy.deepcopy(model)) == names(pickle.loads(pickle.dumps(model))) == expected
    model.a = None
    model.a = nn.Linear(1, 1)
    assert names(model) == [*expected[2:], *expected[:2]]


def test_parts_of_layers_in_cpp_cannot_be_replaced():
    model = language_model()
    with pytest.raises(AttributeError, match="'lm_head' is a part of a GLAForCausalLM"):
        model.lm_head = nn.Linear(16, 5)
    for value in (nn.Linear(4, 4), nn.Parameter(glade.ones(2)), 3):
        with pytest.raises(AttributeError, match="a Decoder inside a model written in C\\+\\+ keeps no attributes, such as 'adapter'"):
            model.model.adapter = value
    assert len(model.named_children()) == 2
    model.adapter = nn.Linear(4, 4)  # of the model itself
    assert names(copy.deepcopy(model))[-1] == "adapter.bias"


def test_refused_parts_change_nothing():
    model = nn.Module()
    model.child = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="would be a part of itself"):
        model.child = nn.Sequential(model)
    assert isinstance(model.child, nn.Linear) and names(model) == ["child.weight", "child.bias"]
    model.first = nn.Parameter(glade.ones(2))
    model.second = model.first
    with pytest.raises(TypeError, match="second: expected a parameter"):
        model.second = glade.zeros(2)
    model.register_buffer("mean", glade.zeros(2))
    model.register_buffer("same", model.mean, persistent=False)
    model.same = glade.ones(2)
    assert [name for name, _ in model.named_buffers()] == ["mean", "same"] and "same" not in model.state_dict()


def test_frozen_parameters_stay_parameters():
    with pytest.raises(ValueError, match="requires_grad is False"):
        nn.Parameter(glade.ones(2), requires_grad=False)
    model = nn.Module()
    model.p = nn.Parameter(glade.ones(2))
    model.p.requires_grad_(False)
    model.p = model.p
    assert names(model) == ["p"]


def test_containers_use_what_is_set_on_them():
    sequence = nn.Sequential(nn.Linear(2, 3), glade.tanh)
    sequence.add_module("2", nn.Linear(3, 9))
    setattr(sequence, "0", nn.Linear(4, 3))
    x = glade.ones(1, 4)
    assert len(sequence) == 3 and sequence(x).shape == (1, 9)
    assert pickle.loads(pickle.dumps(sequence))(x).tolist() == copy.deepcopy(sequence)(x).tolist() == sequence(x).tolist()
    delattr(sequence, "2")
    assert len(sequence) == 2 and sequence(x).shape == (1, 3)

    layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(2, 2)])
    layers.add_module("2", nn.Linear(3, 3))
    setattr(layers, "0", nn.Linear(4, 4))
    assert [layer.in_features for layer in layers] == [4, 2, 3] and len(layers) == 3 and layers[-1].in_features == 3

    by_name = nn.ModuleDict({"a": nn.Linear(1, 1)})
    by_name.b = nn.Linear(2, 2)
    assert len(by_name) == 2 and "b" in by_name and by_name["b"].in_features == 2
    del by_name.a
    assert list(by_name) == ["b"]
    with pytest.raises(KeyError):
        del by_name["a"]


def test_copies_keep_the_modes_of_parts():
    model = language_model()
    model.model.recompute = True
    model.model.layers.eval()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.model.recompute and other.training and not other.model.layers.training


def test_a_state_of_its_own_cannot_be_copied():
    class Own(Pair):
        def __getstate__(self):
            return dict(self.__dict__)

    with pytest.raises(TypeError, match="its own __getstate__ would lose the parts"):
        copy.deepcopy(Own())


def test_conversations_belong_to_their_vocabulary():
    small = dict(hidden_size=2, num_heads=1, intermediate_size=1, tie_word_embeddings=True)
    conversations = []
    language_model(vocab_size=5, **small).generate([[1, 2, 3]], 2, conversations=conversations)
    with pytest.raises(ValueError, match="conversation 0 is of a model with 5 tokens, expected 2000"):
        language_model(vocab_size=2000, **small).generate([[1999]], 1, conversations=conversations)


def test_a_failed_generation_changes_no_conversation(tmp_path):
    model, conversations = language_model(), []
    model.generate([[1, 2, 3]], 2, conversations=conversations)
    conversations[0].save(tmp_path / "before.h5", model)

    def fail(tokens):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        model.generate([list(range(11))], 8, conversations=conversations, on_tokens=fail)
    conversations[0].save(tmp_path / "after.h5", model)
    before, after = (glade.load(tmp_path / name).data for name in ("before.h5", "after.h5"))
    assert before.keys() == after.keys() and all(before[key].tolist() == after[key].tolist() for key in before)
