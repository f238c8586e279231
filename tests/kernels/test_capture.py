"""Streams that are dealt out, without a device that has any."""

import gc
import threading
from collections import Counter

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
    monkeypatch.setattr(capture, "_held", Counter())
    holders = [capture.Holder() for _ in range(capture.POOL)]
    kept = [capture.own_stream(holder, DEVICE) for holder in holders[:3]]
    for _ in range(100):  # others come and go
        assert capture.own_stream(capture.Holder(), DEVICE).cuda_stream not in handles(kept)
    kept += [capture.own_stream(holder, DEVICE) for holder in holders[3:]]
    assert len(handles(kept)) == capture.POOL
    assert capture.own_stream(capture.Holder(), torch.device("cuda", 1)).device_index == 1
    guest = capture.Holder()
    assert capture.own_stream(guest, DEVICE).cuda_stream in handles(kept)
    del guest  # whoever shared its stream still holds it
    assert capture.own_stream(capture.Holder(), DEVICE).cuda_stream in handles(kept)
    free = kept[7].cuda_stream
    del holders[7]
    gc.collect()
    assert capture.own_stream(capture.Holder(), DEVICE).cuda_stream == free


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
