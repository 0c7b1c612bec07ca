"""The gated recurrence against the reference: every subset of gates, both directions, all layouts, values and gradients."""

import inspect
import itertools

import gated_recurrence as reference
import numpy as np
import pytest
from conftest import to_numpy

import glade

GATES = ("g", "g_gamma", "gk", "gv")
SUBSETS = [subset for n in range(5) for subset in itertools.combinations(GATES, n)]
LAYOUTS = ("batch", "packed", "packed3d")


def make_inputs(rng, gates, layout, per_channel=False, K=5, V=7):
    B, T, H, Hkv = (2, 9, 4, 2) if layout == "batch" else (1, 12, 4, 2)
    cu = None if layout == "batch" else np.array([0, 5, 5, 12])
    N = B if cu is None else len(cu) - 1
    inputs = dict(query=rng.normal(size=(B, T, H, K)), key=rng.normal(size=(B, T, Hkv, K)), value=rng.normal(size=(B, T, Hkv, V)))
    shapes = dict(g=(B, T, H, K) if per_channel else (B, T, H), g_gamma=(N, H) if per_channel else (H,), gk=(B, T, H, K), gv=(B, T, H, V))
    for name in gates:
        inputs[name] = -np.abs(rng.normal(size=shapes[name]))
    inputs["initial_state"] = rng.normal(size=(N, H, K, V) if per_channel else (H, K, V))
    if layout == "packed3d":
        inputs.update({name: x[0] for name, x in inputs.items() if name not in ("g_gamma", "initial_state")})
    return inputs, cu


def relative_error(got, expected):
    got = to_numpy(got).astype(float)
    assert got.shape == expected.shape
    return np.sqrt(np.mean((got - expected) ** 2) / max(np.mean(expected**2), 1e-30))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("gates", SUBSETS, ids=",".join)
def test_against_reference(gates, reverse, layout, rng, device):
    for per_channel in (False, True):
        arrays, cu = make_inputs(rng, gates, layout, per_channel)
        inputs = {name: glade.tensor(x, device=device, requires_grad=True) for name, x in arrays.items()}
        cu_seqlens = None if cu is None else glade.tensor(cu)
        o, state = glade.recurrent(**inputs, reverse=reverse, cu_seqlens=cu_seqlens)
        expected_o, expected_state = reference.forward(**arrays, reverse=reverse, cu_seqlens=cu)
        assert relative_error(o, expected_o) < 1e-12 and relative_error(state, expected_state) < 1e-12

        do, dstate = rng.normal(size=o.shape), rng.normal(size=state.shape)
        loss = (o * glade.tensor(do, device=device)).sum() + (state * glade.tensor(dstate, device=device)).sum()
        loss.backward()
        expected = reference.backward(do, dstate, **arrays, reverse=reverse, cu_seqlens=cu)
        for name, x in inputs.items():
            assert relative_error(x.grad, expected[name]) < 1e-11, name


@pytest.mark.parametrize("algorithm", ["auto", "recurrent", "chunk"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("gates", [(), ("g",), ("gk",), ("g", "g_gamma", "gk", "gv")], ids=",".join)
def test_lower_precision(gates, dtype, algorithm, rng, device):
    if algorithm == "chunk" and "gv" in gates and (device == "cpu" or dtype == "float32"):
        pytest.skip("chunks have no gates of values on the CPU and in float32")
    arrays, _ = make_inputs(rng, gates, "batch", K=16, V=32)
    inputs = {name: glade.tensor(x, device=device).to("float32" if name in (*GATES, "initial_state") else dtype) for name, x in arrays.items()}
    rounded = {name: to_numpy(x).astype(float) for name, x in inputs.items()}  # the reference sees the same rounded inputs
    o, state = glade.recurrent(**inputs, algorithm=algorithm)
    expected_o, expected_state = reference.forward(**rounded)
    assert o.dtype is inputs["query"].dtype and state.dtype is glade.float32
    # What auto takes for so few tokens: steps on the CPU and where there are gates of values, chunks on a GPU that multiplies 16 bits.
    if algorithm == "recurrent" or (algorithm == "auto" and (device == "cpu" or "gv" in gates)):
        # The output is rounded once to 8 or 11 bits; the state is float32.
        tolerances = {"float32": 2e-6, "bfloat16": 4e-3, "float16": 5e-4}[dtype], 2e-6
    else:  # factors of products are rounded too
        tolerances = ({"float32": 2e-6, "bfloat16": 5e-3, "float16": 1e-3}[dtype],) * 2
    assert relative_error(o, expected_o) < tolerances[0] and relative_error(state, expected_state) < tolerances[1]


@pytest.mark.parametrize("decay", [-20.0, -1e4, -np.inf, 0.0])
def test_large_decay(decay, rng, device):
    arrays, _ = make_inputs(rng, ("gk",), "batch")
    arrays["gk"][:, 1::3] = decay
    o, state = glade.recurrent(**{name: glade.tensor(x, device=device) for name, x in arrays.items()})
    expected_o, expected_state = reference.forward(**arrays)
    assert relative_error(o, expected_o) < 1e-12 and relative_error(state, expected_state) < 1e-12


def test_default_and_given_scale(rng):
    arrays, _ = make_inputs(rng, (), "batch")
    o, _ = glade.recurrent(**arrays)  # NumPy's arrays are taken too
    scaled, _ = glade.recurrent(**arrays, softmax_scale=0.25)
    np.testing.assert_allclose(to_numpy(scaled), to_numpy(o) * 0.25 * 5**0.5, rtol=1e-12)
    assert relative_error(scaled, reference.forward(**arrays, softmax_scale=0.25)[0]) < 1e-12


def test_gla_and_lightning(rng):
    arrays, _ = make_inputs(rng, ("g", "g_gamma"), "batch")
    o, state = glade.recurrent_gla(**arrays)
    expected = reference.forward(**arrays)
    assert relative_error(o, expected[0]) < 1e-12 and relative_error(state, expected[1]) < 1e-12

    arrays, cu = make_inputs(rng, (), "packed")
    o, state = glade.lightning_attn(**arrays, layer_idx=1, num_layers=3, reverse=True, cu_seqlens=cu)
    expected = reference.forward(**arrays, g_gamma=reference.lightning_g_gamma(4, 1, 3), reverse=True, cu_seqlens=cu)
    assert relative_error(o, expected[0]) < 1e-6 and relative_error(state, expected[1]) < 1e-6  # decays are rounded to float32
    np.testing.assert_allclose(to_numpy(glade.lightning_g_gamma(4, 1, 3)), reference.lightning_g_gamma(4, 1, 3), rtol=1e-6)


def test_steps_of_generation(rng, device):
    inputs, _ = make_inputs(rng, GATES, "batch")
    tensors = {name: glade.tensor(x, dtype="float32", device=device) for name, x in inputs.items()}
    expected, final = glade.recurrent(**tensors)
    first = tensors.pop("initial_state")
    state = glade.stack([first] * expected.shape[0])
    out = glade.empty(*expected[:, :1].shape, device=device)
    for t in range(expected.shape[1]):
        step = {name: x if name == "g_gamma" else x[:, t : t + 1].contiguous() for name, x in tensors.items()}
        assert glade.recurrent_step_(state, **step, out=out).is_same(out)
        assert relative_error(out, to_numpy(expected[:, t : t + 1])) < 1e-5
    assert relative_error(state, to_numpy(final)) < 1e-5


def test_operations_under_ejkernels_names(rng):
    arrays, cu = make_inputs(rng, GATES, "packed")
    positional = [arrays[name] for name in ("query", "key", "value", *GATES, "initial_state")]
    expected = glade.recurrent(**arrays, cu_seqlens=cu, reverse=True, softmax_scale=0.5)
    o, state = glade.recurrent_attention(*positional, cu, softmax_scale=0.5, reverse=True, return_state=True)
    assert o.tolist() == expected[0].tolist() and state.tolist() == expected[1].tolist()
    assert glade.recurrent_attention(*positional, cu, softmax_scale=0.5, reverse=True, platform="cpu").tolist() == o.tolist()
    o = glade.gla_attention(*positional[:5])
    assert o.tolist() == glade.recurrent_gla(*positional[:5])[0].tolist()
    with pytest.raises(ValueError, match="platform is 'triton', which glade does not have"):
        glade.gla_attention(*positional[:3], platform="triton")


def test_plans(rng):
    arrays, _ = make_inputs(rng, ("gk",), "batch")
    inference = glade.linear_attention.plan(arrays["query"], arrays["key"], arrays["value"], gk=arrays["gk"])
    assert str(inference).startswith("forward:  cpu_") and "backward" not in str(inference)
    query = glade.tensor(arrays["query"], requires_grad=True)
    plan = glade.linear_attention.plan(query, arrays["key"], arrays["value"], gk=arrays["gk"], algorithm="recurrent")
    assert "\nbackward: cpu_recurrent: checkpoint_interval 128" in str(plan)
    fields = plan.asdict()
    assert fields["problem"]["gates"] == ["gk"] and fields["backward"]["kernels"] == "cpu_recurrent"
    with pytest.raises(ValueError, match="algorithm is 'automatic', expected auto, recurrent or chunk"):
        glade.linear_attention.plan(query, query, query, algorithm="automatic")


def test_signatures_are_ejkernels():
    attention = inspect.signature(glade.recurrent_attention)
    kinds = {name: p.kind for name, p in attention.parameters.items()}
    positional = ["query", "key", "value", *GATES, "initial_state", "cu_seqlens"]
    assert [n for n, k in kinds.items() if k is inspect.Parameter.POSITIONAL_ONLY] == positional
    assert [n for n in kinds if n not in positional] == ["softmax_scale", "reverse", "return_state", "platform", "cfg"]
    assert list(inspect.signature(glade.gla_attention).parameters) == [n for n in kinds if n not in ("gk", "gv")]
    # In the order of ejkernel: recurrent(q, k, v, g, g_gamma, gk, gv, softmax_scale, initial_state, reverse, cu_seqlens).
    q = glade.ones(1, 2, 1, 1)
    o, _ = glade.recurrent(q, q, q, None, None, None, None, 1.0, glade.ones(1, 1, 1), True, glade.tensor([0, 2]))
    assert o.flatten().tolist() == [3.0, 2.0]


@pytest.mark.parametrize("name", ["recurrent", "recurrent_gla", "lightning_attn"])
def test_algorithms(name, rng, device):
    """Both compute the same, in another order of sums; auto is one of them."""
    arrays, _ = make_inputs(rng, (), "batch", K=16, V=16)
    inputs = {name: glade.tensor(x, dtype="float32", device=device) for name, x in arrays.items()}
    if name == "lightning_attn":
        inputs.update(layer_idx=1, num_layers=3)
    function = getattr(glade, name)
    steps, chunks, auto = (function(**inputs, algorithm=algorithm)[0] for algorithm in ("recurrent", "chunk", "auto"))
    assert steps.tolist() != chunks.tolist() and relative_error(chunks, to_numpy(steps)) < 1e-5
    assert auto.tolist() in (steps.tolist(), chunks.tolist()) and auto.tolist() == function(**inputs)[0].tolist()
    with pytest.raises(ValueError, match=f"{name}: algorithm is 'parallel', expected auto, recurrent or chunk"):
        function(**inputs, algorithm="parallel")

def test_algorithm_obstacle(rng):
    arrays, _ = make_inputs(rng, ("gv",), "batch")
    with pytest.raises(ValueError, match="algorithm chunk does not take"):
        glade.recurrent(**arrays, algorithm="chunk")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(cu_seqlens=np.array([0, 9])), "cu_seqlens"), (dict(initial_state=np.zeros((3, 4, 5, 7))), "initial_state"),
        (dict(key=np.zeros((2, 9, 3, 5))), "key|heads"), (dict(gk=np.zeros((2, 9, 4, 6))), "gk"), (dict(g_gamma=np.zeros(3)), "g_gamma"),
        (dict(value=np.zeros((2, 8, 2, 7))), "value"),
    ],
    ids=lambda x: x if isinstance(x, str) else next(iter(x)),
)  # fmt: skip
def test_errors(change, words, rng):
    arrays, _ = make_inputs(rng, (), "batch")
    with pytest.raises(ValueError, match=words):
        glade.recurrent(**{**arrays, **change})


def test_packed_errors(rng):
    arrays, _ = make_inputs(rng, (), "packed")
    for cu in ([0, 5, 11], [1, 5, 12], [0, 8, 5, 12]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            glade.recurrent(**{**arrays, "initial_state": None}, cu_seqlens=np.array(cu))
    with pytest.raises(TypeError):
        glade.recurrent(arrays["query"], arrays["key"], "value")


def test_a_step_writes_over_none_of_its_arguments():
    rows = [glade.randn(1, 3, 1, 8) for _ in range(3)]
    state = glade.zeros(1, 1, 8, 8)
    for out in (*rows, rows[0][:, ::1]):
        with pytest.raises(ValueError, match="out shares memory"):
            glade.recurrent_step_(state, *rows, out=out)
    both = glade.randn(2, 1, 3, 1, 8)
    expected = glade.recurrent_step_(state.clone(), both[0], *rows[1:])
    assert glade.recurrent_step_(state, both[0], *rows[1:], out=both[1]).tolist() == expected.tolist()
