"""Ctrl-C inside of one long operation: a KeyboardInterrupt soon after, and all as it was before."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import glade

# Every one of these operations takes several seconds on one thread.
PREPARE = """
import signal
import sys
import time
import glade

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in a shell's background ignore the signal
shape = (1, 200_000, 1, 256)
def heads():
    return [glade.full(shape, value, requires_grad=True) for value in (0.1, 0.2, 0.3)]

def gates():
    return glade.full(shape, -0.01)
"""
OPERATIONS = {
    "matmul": "a = glade.randn(7000, 7000)|a @ a",
    "bfloat16 matmul": "a = glade.randn(7000, 7000, dtype='bfloat16')|a @ a",
    "recurrent": "(q, k, v), g = heads(), gates()|glade.recurrent(q, k, v, gk=g, gv=g)",
    "chunk": "(q, k, v), g = heads(), gates()|glade.recurrent(q, k, v, gk=g)",
    "recurrent backward": "(q, k, v), g = heads(), gates(); y = glade.recurrent(q, k, v, gk=g, gv=g)[0].sum()|y.backward()",
    "chunk backward": "(q, k, v), g = heads(), gates(); y = glade.recurrent(q, k, v, gk=g)[0].sum()|y.backward()",
    "backward of many": """
x = w = glade.randn(500, 500, requires_grad=True)
for _ in range(400):
    x = (x @ w).tanh()
y = x.sum()|y.backward()""",
    "generate": "m = glade.nn.models.GLAForCausalLM(hidden_size=64, num_hidden_layers=2, num_heads=2)|m.generate(glade.tensor([[1]]), 10**7)",
}
if glade.cuda.is_available():
    OPERATIONS["waiting for the GPU"] = """
a = glade.randn(8192, 8192, device='cuda', dtype='bfloat16')
glade.cuda.synchronize()
for _ in range(5000):
    a @ a
|glade.cuda.synchronize()"""
RUN = """
print("ready", flush=True)
begin = time.perf_counter()
try:
    {operation}
    sys.exit("it ended by itself")
except KeyboardInterrupt:
    print(time.perf_counter() - begin)
leaves = [x for x in globals().values() if isinstance(x, glade.Tensor) and x.is_leaf and x.requires_grad]
assert all(x.grad is None for x in leaves)
x = glade.ones(64, 64, requires_grad=True)  # and all goes on
(x @ x).sum().backward()
assert x.grad[0, 0].item() == 128
"""


@pytest.mark.parametrize("name", OPERATIONS)
def test_ctrl_c_ends_one_long_operation(name, heard_signals):
    prepare, operation = OPERATIONS[name].split("|")
    program = PREPARE + prepare + RUN.format(operation=operation)
    environment = {"PYTHONPATH": str(Path(glade.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert float(output) < 3
