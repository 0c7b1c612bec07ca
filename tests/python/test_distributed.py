"""glade.distributed: what one process does, and what several do under mpirun."""

import csv
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import glade
from glade import distributed

EXAMPLES = Path(__file__).parents[2] / "examples"
LIBRARY = Path(glade._glade.__file__).parents[2] / "libglade_mpi.so"
needs_mpi = pytest.mark.skipif(not shutil.which("mpirun") or not LIBRARY.exists(), reason="built without MPI, or no mpirun")

WORKER = """
import glade
from glade import distributed, nn, optim

world = distributed.world()
rank, size = world.rank, world.size
x = glade.full((2,), float(rank + 1), requires_grad=True)
assert distributed.all_reduce(x).tolist() == [size * (size + 1) / 2] * 2
assert distributed.all_reduce(x.detach(), "max").tolist() == [size] * 2
assert distributed.all_gather(x).tolist() == [float(r + 1) for r in range(size) for _ in range(2)]
assert distributed.broadcast(x, size - 1).tolist() == [size] * 2
assert distributed.reduce_scatter(glade.ones(3 * size), "average").tolist() == [1] * 3
assert distributed.all_to_all(glade.arange(size)).tolist() == [rank] * size
assert world.broadcast_text(f"from {rank}", 1) == "from 1"
assert world.split(rank % 2).size == (size + 1 - rank % 2) // 2
(distributed.all_reduce(x) * (rank + 1)).sum().backward()
assert x.grad.tolist() == [size * (size + 1) / 2] * 2
if rank == 0:
    distributed.send(x * x, 1).backward()
elif rank == 1:
    distributed.recv((2,), 0).sum().backward()
assert x.grad.tolist() == [size * (size + 1) / 2 + (2 if rank == 0 else 0)] * 2
try:
    distributed.all_reduce(glade.ones(2 + rank % 2))
    raise SystemExit("no error")
except glade.ShapeError as error:
    assert "rank 1: all_reduce of float32 [3] on cpu" in str(error), error

glade.manual_seed(rank)
model = nn.Linear(3, 1)
parallel = distributed.DataParallel(model, bucket_bytes=1)
optimizer = optim.AdamW(model.named_parameters(), lr=0.1)
glade.manual_seed(7)
data = glade.randn(8, 3)
begin, end = world.share(8)
for step in range(10):
    loss = (model(data[begin:end]) - 1).square().mean()
    loss.backward()
    shown = loss.detach()
    parallel.wait([shown])
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"loss {shown.item():.6f}", flush=True)
world.barrier()

# Divided over the ranks, the same.
glade.manual_seed(5)
ids = glade.tensor([[(i * i + j) % 16 for i in range(13)] for j in range(8)])
config = dict(model_type="gla", vocab_size=16, hidden_size=16, num_hidden_layers=2, num_heads=2)


def train(shard):
    glade.manual_seed(3)
    model = nn.models.from_config(config)
    parallel = distributed.DataParallel(model, shard=shard)
    assert parallel.shard == shard
    optimizer = optim.AdamW(parallel.divide(optim.decay_matrices(model.named_parameters(), 0.1)), lr=1e-3)
    losses = []
    for step in range(5):
        loss = model.loss(ids[begin:end, :-1], ids[begin:end, 1:])
        loss.backward()
        shown = loss.detach()
        parallel.wait([shown])
        norm = parallel.step(optimizer, max_norm=1.0)
        optimizer.zero_grad()
        losses += [shown.item(), norm.item()]
    assert parallel.gathered_bytes == 0
    parallel.gather_parameters()
    return losses + [x.square().sum().item() for x in model.parameters()]


whole = train(0)
for shard in 1, 2, 3:
    divided = train(shard)
    assert all(abs(a - b) < 1e-4 * abs(a) + 1e-6 for a, b in zip(whole, divided)), (shard, whole, divided)
rounded = nn.Linear(2, 2)
parallel = distributed.DataParallel(rounded, reduce_dtype="bfloat16", max_ctas=2)
rounded(glade.full((1, 2), 1 + 2**-10)).sum().backward()
parallel.wait()
assert rounded.weight.grad.tolist() == [[1, 1], [1, 1]] and rounded.weight.grad.dtype == glade.float32
try:
    distributed.DataParallel(nn.Linear(2, 2), shard=3)
    raise SystemExit("no error")
except glade.ValueError as error:
    assert "shard 3 gathers layer by layer" in str(error), error

# Models on parts of a sequence.
glade.manual_seed(3)
sizes = dict(vocab_size=16, hidden_size=16, num_hidden_layers=2, num_heads=2)
for config in {"model_type": "gla", "use_short_conv": True, **sizes}, {"model_type": "lightning", **sizes}:
    model = nn.models.from_config(config)
    ids = glade.tensor([[i * i % 7 for i in range(44)]])
    alone = model.loss(ids[:, :43], ids[:, 1:])
    alone.backward()
    borders = glade.tensor([0, 4, 25, 43])
    packed = model.loss(ids[:, :43], ids[:, 1:], borders).item()
    expected = [x.grad for x in model.parameters()]
    for x in model.parameters():
        x.grad = None
    model.set_sequence_group(world)
    begin, end = world.share(43)
    part = model.loss(ids[:, begin:end], ids[:, begin + 1 : end + 1]) * ((end - begin) / 43)
    part.backward()
    assert abs(distributed.all_reduce(part.detach()).item() - alone.item()) < 1e-5
    for x, y in zip(model.parameters(), expected):
        assert (distributed.all_reduce(x.grad) - y).abs().max().item() < 1e-5

    part = model.loss(ids[:, begin:end], ids[:, begin + 1 : end + 1], distributed.share_sequences(borders, (begin, end))) * ((end - begin) / 43)
    assert abs(distributed.all_reduce(part.detach()).item() - packed) < 1e-5
distributed.shutdown()
"""


def run(ranks, *arguments):
    variables = {
        "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none", "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_pml": "ob1", "GLADE_DISTRIBUTED_TIMEOUT": "30",
    }  # fmt: skip
    if 0 < glade.cuda.device_count() < ranks:
        variables["CUDA_VISIBLE_DEVICES"] = ""  # then all of them train on the CPU
    command = ["mpirun", "-n", str(ranks), sys.executable, *arguments]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_several_processes(ranks):
    code, output = run(ranks, "-c", WORKER)
    assert code == 0, output
    losses = [line for line in output.splitlines() if line.startswith("loss")]
    assert len(losses) == 10 and float(losses[-1].split()[1]) < float(losses[0].split()[1])


@needs_mpi
def test_train_lm_on_parts_of_sequences(tmp_path):
    data = tmp_path / "text.txt"
    data.write_text("".join(f"Line {i}: {i * i} lazy dogs.\n" for i in range(600)))
    options = "--device cpu --layers 1 --hidden 32 --heads 2 --seq-len 45 --batch 3 --warmup 5 --steps 6 --eval-every 3".split()

    def losses(ranks, neighbours, *more):
        log = tmp_path / f"{ranks}.{neighbours}.csv"
        how = ["--sequence-parallel", str(neighbours), *more]
        code, output = run(ranks, EXAMPLES / "train_lm.py", "--data", data, "--log", log, *how, *options)
        assert code == 0, output
        rows = csv.DictReader(log.open())
        return [float(value) for row in rows for name, value in row.items() if "bits_per" in name and value]

    alone = losses(1, 1)
    assert len(alone) >= 6
    for ranks, neighbours, shard in ((2, 2, 0), (4, 2, 3)):
        assert losses(ranks, neighbours, "--shard", str(shard)) == pytest.approx(alone, rel=1e-4)
    # Written by two ranks, which divide everything, and by one.
    save = ["--save", tmp_path / "model.h5", "--resume", "auto"]
    first = losses(2, 1, "--shard", "3", "--stop-at", "3", *save)
    rest = losses(1, 1, *save)
    assert first[:3] == pytest.approx(alone[:3], rel=1e-4) and rest[-2:] == pytest.approx(alone[-2:], rel=1e-4)


def test_train_lm_refuses_divisions_that_do_not_fit(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    train_lm = importlib.import_module("train_lm")
    world = SimpleNamespace(size=2, rank=1, split=lambda color: color)
    for options, error in (
        ({"data_parallel": 4}, "--data-parallel 4 times --sequence-parallel 1 is 4, but there are 2 processes"),
        ({"sequence_parallel": 3}, "--sequence-parallel 3 does not divide 2 processes"),
        ({"batch": 1}, "--batch 1 is too small for 2 processes"),
        ({"sequence_parallel": 2, "seq_len": 1}, "--seq-len 1 is too small for --sequence-parallel 2"),
    ):
        chosen = SimpleNamespace(**{"data_parallel": None, "sequence_parallel": 1, "batch": 4, "seq_len": 8} | options)
        with pytest.raises(train_lm.UsageError, match=error):
            train_lm.divide(world, chosen, chosen)
    chosen = SimpleNamespace(data_parallel=None, sequence_parallel=2, batch=1, seq_len=8)
    assert train_lm.divide(world, chosen, chosen) == (0, 1)


@needs_mpi
def test_the_example_trains_the_same_model_on_any_number_of_ranks(tmp_path):
    program = EXAMPLES / "data_parallel.py"
    assert f"```python\n{program.read_text()}```" in (EXAMPLES.parent / "docs" / "distributed.md").read_text()
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Line {i}: {i * i} lazy dogs.\n" for i in range(600)))
    losses = {}
    for ranks in (1, 2):
        code, output = run(ranks, program, text, tmp_path / "model.h5")
        assert code == 0, output
        losses[ranks] = [float(line.split()[-1]) for line in output.splitlines() if line.startswith("step ")]
    assert len(losses[1]) == 3 and losses[1][-1] < losses[1][0] - 0.5
    assert losses[2][0] == pytest.approx(losses[1][0], abs=2e-3)  # later, rounding has grown
    assert glade.load(tmp_path / "model.h5").step == 60


@needs_mpi
def test_an_error_of_one_process_ends_the_others():
    code, output = run(2, "-c", "import glade\nif glade.distributed.world().rank: raise SystemExit(3)\nglade.distributed.world().barrier()")
    assert code != 0, output


def test_one_process():
    world = distributed.world()
    assert (world.rank, world.size, world.local_rank, world.local_size) == (0, 1, 0, 1)
    assert world.share(7) == (0, 7) and world.device("cpu") == "cpu" and world.broadcast_text("a") == "a"
    x = glade.tensor([1.0, 2.0], requires_grad=True)
    for y in distributed.all_reduce(x), distributed.all_gather(x), distributed.broadcast(x), distributed.all_to_all(x), distributed.reduce_scatter(x):
        assert y.tolist() == [1, 2]
        y.sum().backward()
    assert x.grad.tolist() == [5, 5]
    with pytest.raises(glade.ValueError, match="op is 'mean', expected sum, average, max or min"):
        distributed.all_reduce(x, "mean")
    with pytest.raises(glade.AutogradError, match="max and min have no gradient"):
        distributed.all_reduce(x, "max")
    assert issubclass(glade.DistributedError, RuntimeError) and issubclass(glade.DistributedError, glade.Error)
