"""Streams that are dealt out, without a device that has any."""

import gc
import threading

import torch

from grace.kernels import capture

DEVICE = torch.device("cuda", 0)


class Stream:
    """As torch deals them: one of `POOL` after the other, then again the first."""

    dealt = 0

    def __init__(self, device):
        self.device_index, self.cuda_stream = device.index, Stream.dealt % capture.POOL
        Stream.dealt += 1


def handles(streams):
    return {stream.cuda_stream for stream in streams}


def test_no_two_holders_share_a_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    kept = [capture.own_stream(DEVICE) for _ in range(3)]
    for _ in range(100):  # others come and go
        stream = capture.own_stream(DEVICE)
        assert stream.cuda_stream not in handles(kept)
        del stream
    kept += [capture.own_stream(DEVICE) for _ in range(capture.POOL - 3)]
    assert len(handles(kept)) == capture.POOL
    other = torch.device("cuda", 1)
    assert capture.own_stream(other).device_index == 1
    shared = capture.own_stream(DEVICE)
    assert shared.cuda_stream in handles(kept)
    del shared, kept[7]
    gc.collect()
    assert capture.own_stream(DEVICE).cuda_stream not in handles(kept)


def test_captures_take_turns(monkeypatch):
    """A second thread does not begin before the first has ended; a capture may tune inside."""
    inside, log = threading.Event(), []

    class Graph:
        def __init__(self, graph, **options):
            assert options["capture_error_mode"] == "thread_local"
            self.name = graph

        def __enter__(self):
            log.append(f"{self.name} begins")

        def __exit__(self, *error):
            log.append(f"{self.name} ends")

    monkeypatch.setattr(torch.cuda, "graph", Graph)

    def second():
        inside.wait()
        with capture.capturing("second", None):
            pass

    thread = threading.Thread(target=second)
    thread.start()
    with capture.capturing("first", None), capture.device_lock:
        inside.set()
        thread.join(0.05)
    thread.join()
    assert log == ["first begins", "first ends", "second begins", "second ends"]
