"""The errors that docstrings promise are those that come."""

import pytest

import glade

CALLS = {
    "ShapeError": [
        "view(x.T, 6)", "repeat(x, 2)", "t(x[None])", "tril(glade.ones(3))", "triu(glade.ones(3))", "eq(x, glade.ones(4))", "floor_divide(x, glade.ones(4))", "amax(glade.ones(0))", "argmin(glade.ones(0))", "index_add(x, 0, glade.tensor([0]), x)", "scatter(x, 0, glade.tensor([[0]]), x[:0])", "einsum('ii->i', x)", "isclose(x, glade.ones(4))", "randperm(-1)",
        "logical_and(x, glade.ones(4))", "logical_or(x, glade.ones(4))", "logical_xor(x, glade.ones(4))", "masked_select(x, glade.ones(4) > 0)", "lerp(x, x, glade.ones(4))", "addcmul(x, x, glade.ones(4))", "addcdiv(x, x, glade.ones(4))",
        "outer(x, x)", "dot(x, x)", "mv(x, x)", "addmm(x, x, x)", "baddbmm(x, x, x)",
        "add(x, glade.ones(4))", "maximum(x, glade.ones(4))", "lt(x, glade.ones(4))", "where(x > 0, x, glade.ones(4))", "max(glade.ones(0))",
        "argmax(glade.ones(0, 2), 0)", "sum_to(x, (5,))", "matmul(x, x)", "linear(x, glade.ones(2, 2))", "reshape(x, 7)", "permute(x, 0, 0)",
        "expand(x, 4, 5)", "broadcast_to(x, (5, 5))", "flatten(x, 1, 0)", "cat([x, glade.ones(2)])", "stack([x, glade.ones(2)])", "split(x, [1, 2])",
        "gather(x, 0, glade.tensor([0]))", "scatter_add(x, 0, glade.tensor([0]), x)", "empty(-1)", "zeros(-1)", "ones(-1)", "full((-1,), 1)", "eye(-1)",
        "rms_norm(x, glade.ones(2))", "layer_norm(x, glade.ones(2))", "gated_rms_norm(x, x.T)", "swiglu(x, x.T)", "mse_loss(x, x.T)",
        "short_convolution(x[None], glade.ones(2, 2))", "recurrent(x, x, x)", "recurrent_gla(x, x, x)", "lightning_attn(x, x, x, 0, 1)",
        "gla_attention(x, x, x)", "recurrent_attention(x, x, x)",
    ],
    "IndexError": [
        "count_nonzero(x, 5)", "movedim(x, 0, 5)", "prod(x, 5)", "std(x, 5)", "norm(x, 2, 5)", "any(x, 5)", "all(x, 5)", "narrow(x, 0, 1, 5)", "unbind(x, 5)", "chunk(x, 2, 5)", "roll(x, 1, 5)", "sort(x, 5)", "argsort(x, 5)", "topk(x, 1, 5)", "scatter(x, 0, glade.tensor([[9, 0, 0]]), 1)", "index_add(x, 0, glade.tensor([9]), x[:1])",
        "sum(x, 5)", "mean(x, 5)", "var(x, 5)", "max(x, 5)", "min(x, 5)", "amax(x, 5)", "amin(x, 5)", "argmin(x, 5)", "logsumexp(x, 5)", "argmax(x, 5)", "softmax(x, 5)", "log_softmax(x, 5)",
        "cumsum(x, 5)", "flip(x, 5)", "flatten(x, 5)", "transpose(x, 0, 5)", "unsqueeze(x, 5)", "squeeze(x, 5)", "slice(x, 5, 0, 1)", "select(x, 0, 5)",
        "repeat_interleave(x, 2, 5)", "gather(x, 0, glade.tensor([[9, 0, 0]]))", "scatter_add(x, 0, glade.tensor([[9, 0, 0]]), x[:1])",
        "index_select(x, 0, glade.tensor([9]))", "embedding(glade.tensor([9]), x)", "one_hot(glade.tensor([9]), 3)",
        "cross_entropy(x, glade.tensor([0, 9]))", "nll_loss(x, glade.tensor([0, 9]))",
    ],
    "DTypeError": [
        "masked_select(x, x)", "floor(x > 0)", "sign(x > 0)", "bitwise_and(x, 1)", "bitwise_not(x)", "masked_fill(x, x, 0)", "norm(x.int())", "rand_like(x.int())", "randn_like(x.int())", "einsum('ij->', x.int())",
        "tensor('text')", "as_tensor('text')", "rand(2, dtype='int64')", "randn(2, dtype='int64')", "uniform((2,), dtype='int64')",
        "normal((2,), dtype='int64')", "linspace(0, 1, 2, dtype='int64')", "where(x, x, x)", "negative(x > 0)", "abs(x > 0)", "square(x > 0)", "relu(x > 0)",
        "matmul(x > 0, x > 0)", "linear(x.int(), x.int())", "lightning_g_gamma(2, 0, 2, dtype='int64')",
    ],
    "ValueError": [
        "movedim(x, (0, 0), (0, 1))", "tile(x, -1)", "clamp(x)", "power(x.int(), -1)", "remainder(x.int(), 0)", "floor_divide(x.int(), 0)", "allclose(x, x, -1)", "chunk(x, 0)", "topk(x, 9)", "einsum('1', x)", "roll(x, (1, 2), 0)", "randint(3, 3, (2,))", "multinomial(x - 2, 1)", "max(x, (0, 1))", "min(x, (0, 1))",
        "arange(0, 1, 0)", "linspace(0, 1, -1)", "uniform((2,), 2, 1)", "normal((2,), 0, -1)", "bernoulli((2,), 2)", "clamp(x, 1, 0)",
        "gelu(x, 'other')", "slice(x, 0, 0, 1, 0)", "cat([])", "stack([])", "repeat_interleave(x, -1, 0)", "dropout(x, 2)", "sum(x, (0, 0))", "var(x, (0, 0))",
        "lightning_g_gamma(2, 3, 2)",
    ],
    "CheckpointError": ["load('missing.h5')", "save({}, '/nowhere/model.h5')"],
}  # fmt: skip


@pytest.mark.parametrize(("error", "call"), [(error, call) for error, calls in CALLS.items() for call in calls])
def test_documented_errors(error, call):
    name = call.partition("(")[0]
    with pytest.raises(getattr(glade, error)):
        eval(f"glade.{call}", {"glade": glade, "x": glade.ones(2, 3)})  # noqa: S307
    doc = getattr(glade, name).__doc__
    described = doc if "which describes the arguments" not in doc else glade.recurrent.__doc__
    assert error in described


def test_every_function_documents_its_errors():
    """But for those that take any tensor, or nothing that could be wrong."""
    total = set("""exp log sqrt rsqrt reciprocal sin cos tanh sigmoid logsigmoid softplus silu clone contiguous expm1 log1p erf isnan isinf isfinite logical_not
        nonzero default_generator manual_seed is_grad_enabled""".split())
    functions = {name: f for name, f in vars(glade).items() if callable(f) and not isinstance(f, type) and not name.startswith("_")}
    silent = {name for name, f in functions.items() if "Error" not in f.__doc__ and "which describes" not in f.__doc__}
    assert silent == total
