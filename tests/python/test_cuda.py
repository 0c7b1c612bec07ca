"""glade.cuda: memory, streams and graphs."""

import numpy as np
import pytest

import glade

needs_gpu = pytest.mark.skipif(not glade.cuda.is_available(), reason="no GPU")


@pytest.mark.skipif(glade.cuda.is_available(), reason="there is a GPU")
def test_without_gpu():
    assert glade.cuda.device_count() == 0 and not glade.cuda.is_capturing()
    assert glade.Device("auto") == "cpu"
    for call in (glade.cuda.Graph, glade.cuda.Stream, glade.cuda.synchronize, glade.cuda.memory_stats, glade.cuda.empty_cache):
        with pytest.raises(glade.DeviceError):
            call()
    with pytest.raises(glade.DeviceError):
        glade.ones(2, device="cuda")


@needs_gpu
def test_memory_statistics():
    glade.cuda.synchronize()
    before = glade.cuda.memory_stats()["allocated"]
    x = glade.zeros(1 << 20, device="cuda")
    assert glade.cuda.memory_stats()["allocated"] == before + x.nbytes
    glade.cuda.reset_peak_memory_stats()
    x = None
    stats = glade.cuda.memory_stats()
    assert stats["allocated"] == before and stats["peak_allocated"] == before + (4 << 20) <= stats["reserved"]
    glade.cuda.empty_cache()


@needs_gpu
def test_streams():
    stream = glade.cuda.Stream()
    assert glade.cuda.current_stream().handle == 0
    x = glade.ones(1 << 22, device="cuda")
    with glade.cuda.stream(stream) as current:
        assert current.handle == stream.handle == glade.cuda.current_stream().handle != 0
        stream.wait(glade.cuda.Stream())
        for _ in range(50):
            x = x + 1
    glade.cuda.current_stream().wait(stream)
    assert (x == 51).sum().item() == 1 << 22
    with pytest.raises(ZeroDivisionError), glade.cuda.stream(stream):
        1 / 0  # noqa: B018
    assert glade.cuda.current_stream().handle == 0
    stream.synchronize()


@needs_gpu
def test_graph():
    layer = glade.nn.Linear(8, 8).to("cuda")
    x = glade.randn(4, 8, device="cuda")
    layer(x).square().sum().backward()  # what is made at a first use
    layer.zero_grad()
    graph = glade.cuda.Graph()
    assert not graph.is_captured
    with graph:
        assert glade.cuda.is_capturing()
        loss = layer(x).square().sum()
        loss.backward()
    assert graph.is_captured and not glade.cuda.is_capturing()
    gradient = layer.weight.grad
    for _ in range(100):
        x[:] = glade.randn(4, 8, device="cuda")
        graph.replay()
        got = (loss.item(), gradient.tolist())
        layer.zero_grad()
        expected = layer(x).square().sum()
        expected.backward()
        assert got == (expected.item(), layer.weight.grad.tolist())


@needs_gpu
def test_graph_errors():
    x = glade.ones(4, device="cuda")
    graph = glade.cuda.Graph()
    cases = {
        "item": lambda: x.sum().item(),
        "pinned": lambda: glade.tensor([1.0], device="cuda"),
        "synchronize": lambda: glade.cuda.synchronize(),
        "a replay": lambda: graph.replay(),
    }
    for words, call in cases.items():
        with pytest.raises(glade.CudaError, match=words), graph:
            call()
        assert not glade.cuda.is_capturing() and not graph.is_captured
    with pytest.raises(glade.CudaError, match="nothing was captured"):
        graph.replay()
    assert (x + 1).tolist() == [2.0] * 4


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_arrays_may_change_after_a_copy(device):
    """Of few bytes and of many, more in all than a GPU's copies keep in between."""
    busy = glade.zeros(1 << 26 if device == "cuda" else 1, device=device)
    target = glade.zeros(1 << 16, dtype="int64", device=device)
    made, moved = [], []
    for i in range(60):
        for size in (0, 1, 8191, 8192, 1 << 16, (1 << 19) + 1):
            array = np.full(size, i)
            busy += 1
            made.append((i, glade.tensor(array, device=device)))
            shared = glade.from_numpy(array)
            moved.append((i, shared.to(device, non_blocking=True) if device == "cuda" else shared.clone()))
            array[:] = -1
        array = np.full(1 << 16, i)
        target.copy_(glade.from_numpy(array))
        made.append((i, target.clone()))
        array[:] = -1
    for i, x in made + moved:
        assert (x == i).all().item(), (i, x.shape)


@needs_gpu
def test_data_loaders_copy_on_the_stream_that_uses_the_batch():
    data = glade.data.TensorDataset(np.arange(1 << 16))
    stream = glade.cuda.Stream()
    with glade.cuda.stream(stream):
        busy = glade.zeros(1 << 26, device="cuda")
        for workers in (0, 2):
            seen = []
            for (x,) in glade.data.DataLoader(data, batch_size=1 << 12, num_workers=workers, device="cuda"):
                busy += 1
                seen.append(x * 1)
            assert glade.cat(seen).tolist() == list(range(1 << 16))


@needs_gpu
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_work_is_ordered_between_libraries(name):
    """Each side queues much work on a stream of its own and hands the array over at once."""
    library = pytest.importorskip(name)
    ours = glade.cuda.Stream()
    theirs = library.cuda.Stream() if name == "torch" else library.cuda.Stream(non_blocking=True)
    n = 1 << 24
    for _ in range(3):
        with glade.cuda.stream(ours):
            x = glade.zeros(n, device="cuda")
            for _ in range(50):
                x += 1
            with library.cuda.stream(theirs) if name == "torch" else theirs:
                y = library.from_dlpack(x)
                for _ in range(50):
                    y += 1
                x = glade.from_dlpack(y)
            assert (x == 100).sum().item() == n
            del x, y
            fresh = glade.full((n,), -1, device="cuda", dtype="float32")  # memory that just came back
            assert (fresh == -1).sum().item() == n
