"""Modules written in Python and in C++, layers, initialisers, optimisers, models."""

import gc
import math
import signal
import threading
import weakref

import numpy as np
import pytest
from conftest import to_numpy

import glade
from glade import nn, optim


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(glade.ones(3))
        self.register_buffer("count", glade.zeros(1))
        self.note = "text"
        self.constant = glade.ones(3)

    def forward(self, x, *, shift=0):
        return self.linear(x) * self.scale + shift


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Sequential(nn.RMSNorm(3), glade.tanh, nn.Linear(3, 2, bias=False))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_parameters_are_found_by_attribute():
    model = Model()
    names = [f"blocks.{i}.{name}" for i in (0, 1) for name in ("scale", "linear.weight", "linear.bias")] + ["head.0.weight", "head.2.weight"]
    assert [name for name, _ in model.named_parameters()] == names
    assert set(model.state_dict()) == {*names, "blocks.0.count", "blocks.1.count"}
    assert all(x.requires_grad for x in model.parameters())
    assert model.blocks[0].scale.is_same(dict(model.named_parameters())["blocks.0.scale"])
    assert [name for name, _ in model.named_children()] == ["blocks", "head"]
    assert dict(model.named_modules())["blocks.1"] is model.blocks[1] and dict(model.named_modules())[""] is model
    assert len(model.blocks) == 2 and len(model.head) == 3 and list(model.blocks)[1] is model.blocks[1]


def test_forward_takes_any_arguments():
    block = Block()
    x = glade.ones(2, 3)
    assert block(x, shift=5).tolist() == (block(x) + 5).tolist()
    with pytest.raises(AttributeError):
        nn.Module()(x)


def test_attributes_can_be_replaced():
    block = Block()
    block.linear = nn.Linear(3, 4, bias=False)
    block.scale = nn.Parameter(glade.zeros(4))
    assert {name: x.shape for name, x in block.named_parameters()} == {"linear.weight": (4, 3), "scale": (4,)}
    block.scale = None
    del block.count, block.linear
    assert block.named_parameters() == [] and block.state_dict() == {} and not hasattr(block, "linear")
    with pytest.raises(AttributeError):
        del block.nothing
    with pytest.raises(TypeError, match="weight: expected a parameter"):
        nn.Linear(1, 1).weight = glade.ones(1)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        block.nothing
    with pytest.raises(ValueError):
        setattr(block, "a.b", nn.Linear(1, 1))


def test_attributes_before_the_module_is_made():
    """An error, and not one of memory."""

    class Early(nn.Module):
        def __init__(self, use):
            use(self)

    for use in [
        lambda self: setattr(self, "linear", nn.Linear(1, 1)),
        lambda self: setattr(self, "note", 1),
        lambda self: delattr(self, "note"),
        lambda self: self.register_buffer("count", glade.zeros(1)),
        lambda self: self.linear,
    ]:
        with pytest.raises(AttributeError, match=r"super\(\).__init__\(\)"):
            Early(use)


def test_a_module_is_no_part_of_itself():
    inner, outer = Block(), nn.Module()
    outer.inner = inner
    for parent, part in [(inner, outer), (inner, inner), (inner.linear, outer)]:
        with pytest.raises(ValueError, match="'back' would be a part of itself"):
            parent.back = part
    assert len(outer.parameters()) == 3


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 3)
            self.head = nn.Linear.from_weight(self.embedding.weight)

    model = Tied()
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight"]
    assert set(model.state_dict()) == {"embedding.weight", "head.weight"}
    assert model.head.weight.is_same(model.embedding.weight)


def test_modes():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3))
    assert model.training and model.eval() is model and not model.training and not model[0].training
    x = glade.ones(4, 3)
    assert model(x).tolist() == model(x).tolist()
    assert model.train() is model and model[0].training


def test_to(device):
    model = Model()
    weight = model.head[2].weight
    assert model.to(device).to(glade.float64) is model
    assert weight.dtype is glade.float64 and weight.device == device and weight.is_same(model.head[2].weight)
    assert model(glade.ones(1, 3, dtype="float64", device=device)).dtype is glade.float64
    with pytest.raises(glade.DTypeError):
        model.to("int64")


def test_load_state_dict():
    source, target = Model(), Model()
    x = glade.randn(2, 3)
    assert source(x).tolist() != target(x).tolist()
    target.load_state_dict(source.state_dict())
    assert source(x).tolist() == target(x).tolist()
    state = source.state_dict()
    del state["blocks.0.scale"]
    state.update({"extra": glade.ones(1), "head.0.weight": glade.ones(5)})
    with pytest.raises(ValueError) as raised:
        target.load_state_dict(state)
    assert all(word in str(raised.value) for word in ("blocks.0.scale", "extra", "head.0.weight"))


def test_freezing_and_zero_grad():
    model = Model()
    model(glade.ones(1, 3)).sum().backward()
    assert model.blocks[0].scale.grad is not None
    model.zero_grad()
    assert all(x.grad is None for x in model.parameters())
    assert model.requires_grad_(False) is model and not any(x.requires_grad for x in model.parameters())


def test_modules_die_when_let_go_of():
    model = Model()
    weights = [weakref.ref(model.blocks[0].scale), weakref.ref(model.blocks[0]), weakref.ref(model)]
    model(glade.ones(1, 3)).sum().backward()
    del model
    gc.collect()
    assert all(ref() is None for ref in weights)
    linear = nn.Sequential(nn.Linear(2, 2))[0]  # outlives its parent
    gc.collect()
    assert linear(glade.ones(1, 2)).shape == (1, 2)


def test_parts_of_layers_outlive_them():
    norm = nn.GatedLinearAttention(8, num_heads=2).g_norm
    gc.collect()
    assert norm(glade.ones(1, 4)).shape == (1, 4)


def test_layers(rng):
    x = glade.tensor(rng.normal(size=(2, 5, 8)), dtype="float32")
    linear = nn.Linear(8, 3)
    np.testing.assert_allclose(to_numpy(linear(x)), to_numpy(x) @ to_numpy(linear.weight).T + to_numpy(linear.bias), rtol=1e-4, atol=1e-5)
    assert nn.Linear(8, 3, bias=False).bias is None
    embedding = nn.Embedding(10, 4, padding_idx=2)
    assert embedding(glade.tensor([[1, 2]])).shape == (1, 2, 4) and embedding.weight[2].tolist() == [0, 0, 0, 0]
    assert nn.LayerNorm(8)(x).mean(-1).abs().max().item() < 1e-5
    assert abs(nn.RMSNorm(8)(x).square().mean().item() - 1) < 1e-3
    gate = glade.randn(2, 5, 8)
    norm = nn.RMSNorm(8)
    np.testing.assert_allclose(to_numpy(norm.forward_gated(x, gate)), to_numpy(norm(x) * gate.silu()), rtol=1e-5, atol=1e-6)
    assert nn.GatedMLP(8, 16)(x).shape == (2, 5, 8) and nn.GatedMLP.default_intermediate_size(256) == 768
    y, state = nn.ShortConvolution(8)(x)
    assert y.shape == (2, 5, 8) and state.shape == (2, 8, 3)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.GatedLinearAttention(8, num_heads=2),
        lambda: nn.GatedLinearAttention(16, num_heads=4, num_kv_heads=2, use_short_conv=True, feature_map="relu", use_output_gate=False),
        lambda: nn.LightningAttention(8, 1, 3, num_heads=2),
    ],
)
def test_attention_in_pieces(layer):
    layer = layer()
    x = glade.randn(2, 6, layer.q_proj.weight.shape[1])
    whole = layer(x)
    state = nn.AttentionState()
    assert state.recurrent is None
    pieces = glade.cat([layer(x[:, :4], state), layer(x[:, 4:], state)], 1)
    np.testing.assert_allclose(to_numpy(pieces), to_numpy(whole), rtol=1e-4, atol=1e-5)
    packed = layer(x.reshape(1, 12, -1), cu_seqlens=glade.tensor([0, 6, 12]))
    np.testing.assert_allclose(to_numpy(packed.reshape(2, 6, -1)), to_numpy(whole), rtol=1e-4, atol=1e-5)


def test_layer_errors():
    with pytest.raises(ValueError):
        nn.GatedLinearAttention(8, num_heads=3)
    with pytest.raises(ValueError, match="layer_idx"):
        nn.LightningAttention(8, 3, 3)
    with pytest.raises(ValueError):
        nn.Dropout(1.5)
    with pytest.raises(TypeError):
        nn.Sequential(3)
    with pytest.raises(TypeError):
        nn.ModuleList([glade.tanh])
    with pytest.raises(glade.DTypeError):
        nn.Parameter([1, 2])


def test_initializers():
    x = nn.Parameter(glade.zeros(50, 40))
    assert nn.init.constant_(x, 3) is x and x.min().item() == 3
    assert nn.init.uniform_(x, -1, 2).min().item() >= -1 and x.requires_grad and x.is_leaf
    assert abs(nn.init.normal_(x, 1, 0.5).mean().item() - 1) < 0.1
    assert nn.init.kaiming_uniform_(x).abs().max().item() <= math.sqrt(6 / 40)
    assert abs(nn.init.kaiming_normal_(x, nonlinearity="linear").var().item() * 40 - 1) < 0.2
    assert nn.init.trunc_normal_(x, std=0.5, a=-0.5, b=0.5).abs().max().item() <= 0.5 and nn.init.zeros_(x).abs().sum().item() == 0
    assert nn.init.ones_(x).min().item() == 1
    assert nn.init.xavier_uniform_(x).abs().max().item() <= math.sqrt(6 / 90)
    assert abs(nn.init.xavier_normal_(x).var().item() * 45 - 1) < 0.2


def adamw_in_numpy(p, grads, lr, beta1, beta2, eps, decay):
    m = v = 0
    for t, g in enumerate(grads, 1):
        p = p * (1 - lr * decay)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        p = p - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return p


def test_adamw(rng):
    values, grads = rng.normal(size=(3, 4)), rng.normal(size=(5, 3, 4))
    x = nn.Parameter(values.copy())
    optimizer = optim.AdamW([x], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    for g in grads:
        x.grad = glade.tensor(g)
        optimizer.step()
    np.testing.assert_allclose(to_numpy(x), adamw_in_numpy(values, grads, 0.1, 0.8, 0.9, 1e-6, 0.3), rtol=1e-12)
    optimizer.zero_grad()
    assert x.grad is None


def test_adamw_decays_all_parameters():
    """As PyTorch's; decay_matrices leaves biases and the weights of norms out."""
    layer = nn.Linear(3, 2)
    for x in layer.parameters():
        x.grad = glade.zeros_like(x)
    before = [to_numpy(x).copy() for x in (layer.weight, layer.bias)]
    groups = optim.decay_matrices(layer.named_parameters(), 0.5)
    assert [[name for name, _ in group["params"]] for group in groups] == [["weight"], ["bias"]]
    optim.AdamW(groups, lr=0.1).step()
    np.testing.assert_allclose(to_numpy(layer.weight), before[0] * 0.95, rtol=1e-6)
    np.testing.assert_array_equal(to_numpy(layer.bias), before[1])
    optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.5).step()
    np.testing.assert_allclose(to_numpy(layer.weight), before[0] * 0.95**2, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(layer.bias), before[1] * 0.95, rtol=1e-6)
    assert len(optim.decay_matrices([layer.weight, layer.bias])[0]["params"]) == 1


def test_groups_and_schedules():
    a, b = nn.Parameter(glade.ones(2)), nn.Parameter(glade.ones(2))
    optimizer = optim.SGD([{"params": [a], "lr": 1.0}, {"params": [("b", b)], "weight_decay": 1.0}], lr=0.5)
    assert [group.lr for group in optimizer.param_groups] == [1.0, 0.5] and optimizer.lr == 1.0
    assert [name for group in optimizer.param_groups for name in group.param_names] == ["0", "b"]
    a.grad, b.grad = glade.ones(2), glade.zeros(2)
    optimizer.step()
    assert a.tolist() == [0, 0] and b.tolist() == [0.5, 0.5]
    optimizer.param_groups[1].lr = 0.25
    assert optimizer.param_groups[1].lr == 0.25
    scheduler = optim.LRScheduler(optimizer, lambda step: 1 / (step + 1))
    scheduler.step()
    assert scheduler.factor == 0.5 and [group.lr for group in optimizer.param_groups] == [0.5, 0.125]
    state = {name: x.clone() for name, x in scheduler.state_dict().items()}
    scheduler.step()
    scheduler.load_state_dict(state)
    assert scheduler.factor == 0.5
    schedule = optim.warmup_cosine_lr(2, 10, 0.1)
    assert schedule(10) == pytest.approx(0.1) and optim.constant_lr()(99) == 1
    with pytest.raises(ValueError):
        optim.warmup_cosine_lr(5, 2)
    with pytest.raises(ValueError, match="momentun"):
        optim.SGD([{"params": [a], "momentun": 1}])
    for wrong in ([], [a, a]):
        with pytest.raises(ValueError):
            optim.AdamW(wrong)
    optimizer.lr = 3
    assert [group.lr for group in optimizer.param_groups] == [3, 3]


def test_scheduler_keeps_its_optimizer():
    scheduler = optim.LRScheduler(optim.SGD([nn.Parameter(glade.ones(1))]), optim.constant_lr())
    gc.collect()
    scheduler.step()


def test_clip_grad_norm():
    x, y = nn.Parameter(glade.zeros(2)), nn.Parameter(glade.zeros(1))
    x.grad, y.grad = glade.tensor([3.0, 0.0]), glade.tensor([4.0])
    assert optim.clip_grad_norm_([x, y], 1.0).item() == pytest.approx(5)
    np.testing.assert_allclose(to_numpy(x.grad), [0.6, 0], rtol=1e-5)


def test_a_model_learns(device):
    glade.manual_seed(1)
    x = glade.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], device=device)
    y = glade.tensor([[0.0], [1], [1], [0]], device=device)
    model = nn.Sequential(nn.Linear(2, 16), glade.tanh, nn.Linear(16, 1)).to(device)
    optimizer = optim.AdamW(model.named_parameters(), lr=0.05)
    for _ in range(200):
        loss = glade.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.01


MODELS = [nn.models.GLAForCausalLM, nn.models.LightningForCausalLM]


def small(model, **fields):
    return model(**{**dict(vocab_size=11, hidden_size=16, num_hidden_layers=2, num_heads=2), **fields})


@pytest.mark.parametrize("make", MODELS)
def test_models(make, device):
    model = small(make).to(device)
    ids = glade.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], device=device)
    logits = model(ids)
    assert logits.shape == (2, 5, 11)
    expected = glade.cross_entropy(logits[:, :-1], ids[:, 1:]).item()
    assert model.loss(ids[:, :-1], ids[:, 1:]).item() == pytest.approx(expected, rel=1e-4)
    states = nn.models.AttentionStates()
    pieces = glade.cat([model(ids[:, :3], states), model(ids[:, 3:], states)], 1)
    np.testing.assert_allclose(to_numpy(pieces), to_numpy(logits), rtol=1e-3, atol=1e-4)
    assert len(states) == 2 and states[0].recurrent.shape[0] == 2
    assert len(model.model.layers) == 2 and model.model.layers[1].mlp is not None
    with pytest.raises(IndexError):
        model.model.layers[2]


@pytest.mark.parametrize("make", MODELS)
def test_configs(make):
    model = small(make, dtype=glade.bfloat16, tie_word_embeddings=True)
    assert model.config["hidden_size"] == 16 and model.config["dtype"] == "bfloat16"
    again = nn.models.from_config(model.config)
    assert type(again) is make and again.config == model.config
    assert again(glade.tensor([[1]])).dtype is glade.bfloat16
    with pytest.raises(ValueError, match="hiden_size"):
        make(hiden_size=3)
    with pytest.raises(ValueError, match="hidden_size"):
        make(hidden_size="big")
    with pytest.raises(ValueError, match="model_type"):
        nn.models.from_config({**model.config, "model_type": "other"})


def test_generate():
    model = small(nn.models.GLAForCausalLM)
    prompt = glade.tensor([[1, 2], [3, 4]])
    seen = []
    out = model.generate(prompt, 6, temperature=0, on_tokens=seen.append)
    assert out.shape == (2, 8) and out[:, :2].tolist() == prompt.tolist() and out[:, 2:].T.tolist() == seen
    ids = prompt
    for _ in range(6):  # the same, reading the whole sequence for every token
        ids = glade.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], 1)
    assert ids.tolist() == out.tolist()
    drawn = [model.generate(prompt, 6, seed=seed).tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert model.generate(prompt, 6, top_k=1, seed=3).tolist() == out.tolist()
    with pytest.raises(ValueError):
        model.generate(prompt, 6, top_p=2.0)

    def stop(tokens):
        raise StopIteration

    with pytest.raises(StopIteration):
        model.generate(prompt, 6, on_tokens=stop)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="POSIX only")
def test_ctrl_c_ends_generation():
    model = small(nn.models.GLAForCausalLM)
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in a shell's background ignore the signal
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model.generate(glade.tensor([[1]]), 10**7)
    timer.join()
    signal.signal(signal.SIGINT, before)


def test_other_threads_run_during_a_computation():
    a = glade.randn(700, 700)
    done = threading.Event()
    counts = [0]

    def count():
        while not done.is_set():
            counts[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counts[0]
    for _ in range(5):
        a @ a
    during = counts[0] - before
    done.set()
    thread.join()
    assert during > 0


def test_one_model_in_several_threads():
    model = small(nn.models.GLAForCausalLM)
    expected = model(glade.tensor([[1, 2, 3]])).tolist()
    failures = []

    def work():
        try:
            for _ in range(10):
                assert model(glade.tensor([[1, 2, 3]])).tolist() == expected
                model.loss(glade.tensor([[1, 2]]), glade.tensor([[2, 3]])).backward()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
