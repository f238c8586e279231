"""What ran when, for a picture: Chrome trace events, as Perfetto and chrome://tracing read them."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque

from grace.files import atomic_write

HOST, GPU = 1, 2  # process ids of the two groups of tracks


class Timeline:
    """Spans of nodes, the newest `capacity` of them.

    Tracks are (node, instance), once for threads and once for the GPU. Any thread may add.

    Args:
        capacity: the most spans held; older ones go. One takes about 200 bytes.
    """

    def __init__(self, capacity: int = 100_000):
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._lock = threading.Lock()
        self._spans: deque[tuple] = deque(maxlen=capacity)
        self._forgotten = 0

    def add(
        self, node: str, instance: int, start: float, end: float,
        batch: int, rows: int, gpu: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        """Keep a span.

        Args:
            node, instance: its track.
            start, end: seconds of `time.perf_counter`.
            batch: number of the batch.
            rows: of the batch.
            gpu: whether the GPU was busy, rather than a thread.
            name: of the span, if not the node's.
        """
        with self._lock:
            self._forgotten += len(self._spans) == self._spans.maxlen
            self._spans.append((node, instance, start, end, batch, rows, gpu, name or node))

    def __len__(self) -> int:
        return len(self._spans)

    def to_json(self) -> str:
        """Return the trace: an object with `traceEvents`, times in microseconds."""
        with self._lock:
            spans, forgotten = list(self._spans), self._forgotten
        tracks: dict[tuple[bool, str, int], int] = {}
        events = []
        for node, instance, start, end, batch, rows, gpu, name in spans:
            track = tracks.setdefault((gpu, node, instance), len(tracks) + 1)
            events.append({
                "name": name, "ph": "X", "pid": GPU if gpu else HOST, "tid": track,
                "ts": round(start * 1e6, 3), "dur": round(max(end - start, 0.0) * 1e6, 3),
                "args": {"batch": batch, "rows": rows},
            })  # fmt: skip
        heads = [_meta("process_name", HOST, 0, "threads")]
        if any(gpu for gpu, _, _ in tracks):
            heads.append(_meta("process_name", GPU, 0, "GPU"))
        for (gpu, node, instance), track in tracks.items():
            process = GPU if gpu else HOST
            heads.append(_meta("thread_name", process, track, f"{node} {instance}"))
        other = {"forgotten_spans": forgotten, "written_at": time.strftime("%FT%TZ", time.gmtime())}
        return json.dumps(
            {"traceEvents": heads + events, "displayTimeUnit": "ms", "otherData": other}
        )

    def write(self, path: str | os.PathLike) -> None:
        """Write the trace to a file, whole or not at all.

        Raises:
            OSError: if the file cannot be written.
        """
        text = self.to_json()
        with atomic_write(path) as file:
            file.write(text.encode())


def _meta(kind: str, process: int, thread: int, name: str) -> dict:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
