"""What to write instead of names of PyTorch's that glade lacks, for the AttributeError that says so."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

_STAYS_OUT = "glade does not have it; docs/limits.md says what it has instead"

# Of tensors, which are x here, and of functions on them.
_TENSORS = {
    "absolute": "x.abs()", "fix": "x.trunc()", "sgn": "x.sign()", "msort": "x.sort(0)", "argwhere": "x.nonzero()", "take_along_dim": "x.gather(dim, indices)", "inner": "x @ y.mT",
    "log2": "x.log() / math.log(2)", "log10": "x.log() / math.log(10)", "exp2": "(x * math.log(2)).exp()", "tan": "x.sin() / x.cos()", "frac": "x - x.trunc()",
    "fmod": "x.remainder(y), whose result has y's sign", "sinh": "(x.exp() - (-x).exp()) / 2", "cosh": "(x.exp() + (-x).exp()) / 2", "logaddexp": "glade.stack([a, b]).logsumexp(0)",
    "nan_to_num": "x.masked_fill(x.isnan(), 0)", "nansum": "x.masked_fill(x.isnan(), 0).sum()", "clamp_min": "x.clamp(min=value)", "clamp_max": "x.clamp(max=value)",
    "median": "x.sort(dim).values and the element in the middle", "quantile": "x.sort(dim).values and its elements", "kthvalue": "x.sort(dim).values.select(dim, k - 1)",
    "cumprod": "x.log().cumsum(dim).exp() for positive numbers", "std_mean": "x.std(dim), x.mean(dim)", "var_mean": "x.var(dim), x.mean(dim)", "aminmax": "x.amin(), x.amax()",
    "diagonal": "i = glade.arange(n); x[..., i, i]", "diag": "i = glade.arange(n); x[i, i]", "trace": "glade.einsum('ii', x)", "diff": "x[1:] - x[:-1]",
    "index_fill": "y = x.clone(); y[indices] = value", "index_fill_": "x[indices] = value", "index_copy": "y = x.clone(); y[indices] = source", "index_copy_": "x[indices] = source",
    "index_put_": "x[indices] = source", "masked_scatter": "y = x.clone(); y[mask] = source", "masked_scatter_": "x[mask] = source", "take": "x.flatten()[indices]",
    "bernoulli_": "x.copy_(glade.bernoulli(x.shape, p))", "random_": "x.copy_(glade.randint(low, high, x.shape))", "exponential_": "x.copy_(-(1 - glade.rand_like(x)).log())",
    "dist": "(x - y).norm()", "hypot": "(x * x + y * y).sqrt()", "scatter_reduce": "x.scatter_add(dim, indices, source), for sums", "square_": "x *= x", "grad_fn": "x.is_leaf", "type": "x.dtype, or x.to(dtype)", "get_device": "x.device.index", "char": "x.int(); there is no int8", "short": "x.int(); there is no int16",
    "byte": "x.to(glade.uint8)", "ravel": "x.flatten()", "unfold": "glade.stack of slices", "unflatten": "x.view(...) or x.reshape(...)", "split_with_sizes": "x.split(sizes)",
    "tensor_split": "x.split(sizes)", "sum_to_size": "x.sum_to(shape)", "fliplr": "x.flip(1)", "flipud": "x.flip(0)", "is_nonzero": "bool(x)", "storage": "x.data_ptr()", "pin_memory": "x.cuda()",
    "unique": "numpy.unique(x.numpy())", "bincount": "glade.zeros(n, dtype='int64').scatter_add(0, x, glade.ones_like(x))", "histc": "numpy.histogram(x.numpy())",
}  # fmt: skip
_FUNCTIONS = {
    "asarray": "glade.as_tensor(array)", "is_tensor": "isinstance(x, glade.Tensor)", "numel": "x.numel()", "is_floating_point": "x.is_floating_point()",
    "hstack": "glade.cat(tensors, 1)", "vstack": "glade.cat(tensors, 0), or glade.stack(tensors) of vectors", "dstack": "glade.stack(tensors, 2)", "column_stack": "glade.stack(tensors, 1)",
    "meshgrid": "x[:, None] and y[None, :], which broadcast", "tensordot": "glade.einsum", "cdist": "((x[:, None] - y[None]) ** 2).sum(-1).sqrt()", "scalar_tensor": "glade.tensor(number)",
    "randint_like": "glade.randint(low, high, x.shape)", "logspace": "(glade.linspace(start, stop, count) * math.log(10)).exp()", "tril_indices": "glade.ones(n, n).tril().nonzero().T",
    "triu_indices": "glade.ones(n, n).triu().nonzero().T", "isin": "(x[..., None] == values).any(-1)", "broadcast_tensors": "x.expand(shape)", "get_rng_state": "glade.default_generator().state",
    "set_rng_state": "glade.default_generator().state = state", "set_num_threads": "the environment variable OMP_NUM_THREADS", "get_num_threads": "the environment variable OMP_NUM_THREADS",
    "set_default_dtype": "dtype= where tensors are made", "autocast": "model(x.bfloat16()); see docs/python.md", "compile": _STAYS_OUT, "vmap": _STAYS_OUT, "seed": "glade.manual_seed(seed)",
    "initial_seed": "glade.default_generator().state[0]", "rsub": "b - a", "save_checkpoint": "glade.save(model, path)", "load_checkpoint": "glade.load(path)", "utils": "glade.data, for Dataset and DataLoader", "inference_mode": "glade.no_grad()",
    "set_printoptions": "numpy.set_printoptions and x.numpy()", "get_default_dtype": "glade.float32, which it always is", "Size": "tuple", "backends": "nothing: what the machine has is used",
    "promote_types": "(a + b).dtype", "result_type": "(a + b).dtype", "int8": "glade.uint8 or glade.int32", "int16": "glade.int32", "use_deterministic_algorithms": "nothing: every operation is deterministic", "FloatTensor": "glade.tensor(values)", "LongTensor": "glade.tensor(values)",
}  # fmt: skip
_LAYERS = {
    "LogSoftmax": "glade.log_softmax", "LogSigmoid": "glade.logsigmoid", "Unflatten": "x.view(...)", "LeakyReLU": "glade.maximum(x, slope * x)", "leaky_relu": "glade.maximum(x, slope * x)",
    "ELU": "glade.where(x > 0, x, x.clamp(max=0).expm1())", "elu": "glade.where(x > 0, x, x.clamp(max=0).expm1())", "relu6": "x.clamp(0, 6)", "hardtanh": "x.clamp(-1, 1)", "glu": "a, b = x.chunk(2, -1); a * b.sigmoid()",
    "softsign": "x / (1 + x.abs())", "mish": "x * glade.softplus(x).tanh()", "cosine_similarity": "(F.normalize(x, dim=dim) * F.normalize(y, dim=dim)).sum(dim)", "ParameterDict": "nn.Module with parameters as attributes",
    "huber_loss": "d = (x - y).abs(); glade.where(d < 1, 0.5 * d * d, d - 0.5).mean()", "smooth_l1_loss": "d = (x - y).abs(); glade.where(d < 1, 0.5 * d * d, d - 0.5).mean()",
    "conv1d": "nn.ShortConvolution, which is causal and depthwise", "Conv1d": "nn.ShortConvolution, which is causal and depthwise", "MultiheadAttention": "F.scaled_dot_product_attention, or nn.GatedLinearAttention",
    "ExponentialLR": "LambdaLR(optimizer, lambda step: gamma**step)", "MultiStepLR": "LambdaLR(optimizer, lambda step: gamma ** sum(step >= m for m in milestones))",
    "LinearLR": "LambdaLR(optimizer, lambda step: ...)", "ConstantLR": "LambdaLR(optimizer, lambda step: ...)", "SequentialLR": "LambdaLR(optimizer, lambda step: ...)",
    "ReduceLROnPlateau": "optimizer.lr = ... where the loss stays", "CosineAnnealingWarmRestarts": "LambdaLR(optimizer, lambda step: ...)", "RMSprop": "glade.optim.Adam", "Adagrad": "glade.optim.Adam",
    "eye_": "x.copy_(glade.eye(n)) within glade.no_grad()", "calculate_gain": "the gain itself: nonlinearity= of kaiming_normal_ knows it", "orthogonal_": "x.copy_(glade.as_tensor(numpy.linalg.qr(a)[0]))",
    "DataParallel": "glade.distributed.DataParallel", "utils": "glade.optim.clip_grad_norm_ for torch.nn.utils.clip_grad_norm_", "parallel": "glade.distributed.DataParallel",
}  # fmt: skip
# What no table can replace by a line.
_FAMILIES = ("Conv", "conv", "BatchNorm", "batch_norm", "InstanceNorm", "instance_norm", "GroupNorm", "group_norm", "MaxPool", "max_pool", "AvgPool", "avg_pool", "Adaptive", "adaptive", "LSTM", "GRU",
             "RNN", "Transformer", "fft", "sparse", "quantize", "complex", "linalg", "svd", "qr", "cholesky", "inverse", "det", "solve", "eig", "Lazy", "Upsample", "interpolate", "Embedding")  # fmt: skip


def hint(name: str) -> str:
    """What to write for x.name where x is a tensor; empty where nothing is known."""
    if name in _TENSORS or not name.endswith("_"):
        return _TENSORS.get(name, "")
    from glade._glade import Tensor

    base = name[:-1]  # in place: assignment does it too
    text = f"x.{base}(...)" if hasattr(Tensor, base) else _TENSORS.get(base, "")
    return f"x = {text}" if text else ""


def explain(name: str) -> str:
    """The message for a tensor without that attribute; empty where nothing is known."""
    text = hint(name)
    return f"a tensor has no '{name}': write {text}" if text else ""


def fail(module: str, name: str) -> NoReturn:
    """The AttributeError of a module without that name."""
    text = _FUNCTIONS.get(name) or hint(name) if module == "glade" else _LAYERS.get(name)
    if not text and name.startswith(_FAMILIES):
        text = _STAYS_OUT
    rest = f": {text}" if text == _STAYS_OUT else f": write {text}" if text else ""
    raise AttributeError(f"module '{module}' has no '{name}'{rest}", name=name, obj=importlib.import_module(module))


def for_module(module: str) -> Any:
    """The __getattr__ of a module."""

    def find(name: str) -> NoReturn:
        fail(module, name)

    return find
