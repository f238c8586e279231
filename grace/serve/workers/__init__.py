"""HTTP in processes of its own: the engine's interpreter has batches to do and nothing else.

A worker holds connections, heads, limits, tokens, the JSON of `/v1/retrieve`, its access log and
its spans; the engine's process gets requests as text and gives answers as text, over a socket pair
(`wire`). All other routes are the engine's application, called over the same pair.
"""

from grace.serve.workers.supervisor import default_count, start_workers, worker_count

__all__ = ["default_count", "start_workers", "worker_count"]
