"""glade.cuda: memory, streams and graphs."""

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
