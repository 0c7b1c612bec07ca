"""glade's kernels inside PyTorch."""

import pytest

torch = pytest.importorskip("torch")

import glade  # noqa: E402
import glade.torch  # noqa: E402


@pytest.fixture
def device(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return device


def recurrence(q, k, v, gk):
    """Gated linear attention in PyTorch's own operations."""
    state, outputs = 0, []
    for t in range(q.shape[1]):
        state = gk[:, t].exp()[..., None] * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, :, None] * state).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, 1), state


def test_recurrent(device):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 7, 3, 5, dtype=torch.float64, device=device) for _ in range(4)]
    inputs[3] = -inputs[3].abs()
    for x in inputs:
        x.requires_grad_()
    results = []
    for function in (recurrence, lambda q, k, v, gk: glade.torch.recurrent(q, k, v, gk=gk)):
        o, state = function(*inputs)
        loss = (o * o).sum() + (state.sin() * 3).sum()
        results.append((o, state, *torch.autograd.grad(loss, inputs)))
    for expected, got in zip(*results):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_layers(device):
    torch.manual_seed(0)
    x, gate = (torch.randn(4, 6, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    weight = torch.randn(6, dtype=torch.float64, device=device, requires_grad=True)
    cases = [
        (glade.torch.swiglu(x, gate), torch.nn.functional.silu(x) * gate),
        (glade.torch.rms_norm(x, weight, eps=1e-6), torch.nn.functional.rms_norm(x, (6,), weight, 1e-6)),
        (glade.torch.layer_norm(x, weight), torch.nn.functional.layer_norm(x, (6,), weight)),
        (
            glade.torch.cross_entropy(x, torch.tensor([0, 5, -100, 2], device=device), label_smoothing=0.1),
            torch.nn.functional.cross_entropy(x, torch.tensor([0, 5, -100, 2], device=device), label_smoothing=0.1),
        ),
    ]
    for got, expected in cases:
        torch.testing.assert_close(got, expected)
        seed = torch.randn_like(got)
        for a, b in zip(*(torch.autograd.grad(y, [x, gate, weight], seed, allow_unused=True) for y in (got, expected))):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


def test_without_gradients_and_errors(device):
    q = torch.randn(1, 3, 2, 4, device=device)
    o, state = glade.torch.recurrent_gla(q, q, q)
    assert not o.requires_grad and o.device.type == device and state.shape == (1, 2, 4, 4)
    q.requires_grad_()
    o, _ = glade.torch.lightning_attn(q, q, q, layer_idx=0, num_layers=2)
    o.sum().backward(retain_graph=True)
    assert q.grad.shape == q.shape
    with pytest.raises(RuntimeError, match="once"):
        o.sum().backward()
    with pytest.raises(ValueError, match="g_gamma"):
        glade.torch.recurrent(q, q, q, g_gamma=torch.zeros(5, device=device))
    o = glade.torch.gla_attention(q * 1, q, q)
    x = q * 1
    o = glade.torch.swiglu(x, x)
    x.data.add_(1)
    o.sum().backward()
    x = q * 1
    o = glade.torch.swiglu(x, x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        o.sum().backward()
