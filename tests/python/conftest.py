import signal

import numpy as np
import pytest

import glade

DEVICES = ["cpu"] + (["cuda"] if hasattr(glade, "cuda") and glade.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def seed():
    glade.manual_seed(0)


@pytest.fixture
def heard_signals():
    """Programs that are started hear Ctrl-C and closed terminals, also if the tests run under nohup or as a shell's background job."""
    before = [(number, signal.signal(number, signal.SIG_DFL)) for number in (signal.SIGINT, signal.SIGHUP)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


def to_numpy(x):
    """The tensor's values in an array of its dtype (float32 for bfloat16)."""
    x = x.detach().cpu()
    return (x.float() if x.dtype == glade.bfloat16 else x).numpy()
