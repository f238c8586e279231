"""`python -m grace.serve.workers PORT LINK`: two sockets that the engine's process has opened."""

import sys

from grace.serve.workers.process import run

if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))
