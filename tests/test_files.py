"""Files appear whole or not at all, and nothing stays behind."""

import os
import subprocess
import sys

import pytest

from grace.files import atomic_write


def test_an_error_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail():
        with atomic_write(path) as file:
            file.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path):
    path = tmp_path / "fi*le"
    code = (
        "import os, signal, sys; from grace.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    running = tmp_path / f".fi*le.{os.getppid()}.tmp"  # a process that is still at it
    other = tmp_path / ".file.1.notes.tmp"
    running.touch()
    other.touch()
    with atomic_write(path) as file:
        file.write(b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, running, other])
    assert path.read_bytes() == b"whole"


def test_a_termination_signal_ends_a_command_tidily(tmp_path):
    requests = tmp_path / "pipe"
    os.mkfifo(requests)
    code = (
        "import os, signal, sys, threading; from grace.cli import app, main\n"
        "from grace.files import atomic_write\n"
        "@app.command('hang')\n"
        "def hang():\n"
        "    with atomic_write(sys.argv[2]) as file:\n"
        "        file.write(b'half'); os.kill(os.getpid(), signal.SIGTERM); signal.pause()\n"
        "sys.argv = ['grace', 'hang', sys.argv[1]]\n"
        "main()\n"
    ).replace("sys.argv[2]", repr(str(tmp_path / "out")))
    ended = subprocess.run([sys.executable, "-c", code, "x"], check=False, capture_output=True)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*.tmp")), ended.stderr


def test_a_symbolic_link_keeps_pointing_to_its_file(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    with atomic_write(pipe) as file:
        file.write(b"through")
    assert reader.communicate(timeout=30)[0] == b"through"
    assert pipe.is_fifo()


def test_a_place_that_takes_no_file_is_named_as_it_was_given(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "file"):
        with (
            pytest.raises(OSError, match=r"name a file|does not exist") as caught,
            atomic_write(path),
        ):
            pass
        assert caught.value.filename == str(path)
