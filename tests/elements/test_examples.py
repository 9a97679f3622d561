"""The two classic programs work, one after the other and side by side."""

import re
import subprocess
import sys
from pathlib import Path

from fdb.subspace_impl import Subspace

import fdbqueue

EXAMPLES = Path(__file__).parents[2] / "examples"


def start(program: str, url: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(EXAMPLES / f"elements_{program}.py"), url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines_of(process: "subprocess.Popen[str]") -> list[str]:
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def test_a_hundred_elements_are_produced_and_consumed_once(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}/outbox"
    produced = [
        re.fullmatch(r"# added element (\d+) as (\S+)", line) for line in lines_of(start("producer", url))
    ]
    names = {match[2]: match[1] for match in produced if match}
    assert list(names.values()) == [str(count) for count in range(1, 101)]
    both = [start("consumer", url), start("consumer", url)]
    shares = [lines_of(consumer) for consumer in both]
    read = [line for share in shares for line in share]
    (header,) = {line.rsplit(", ", 1)[1] for line in read}
    assert int(header.split()[0]) > 0
    assert sorted(read) == [
        f"# reading element {name}: element {names[name]}, {header}" for name in sorted(names)
    ]
    assert all(share == sorted(share) for share in shares)
    with fdbqueue.open(url) as db:
        assert fdbqueue.ElementQueue(Subspace(("outbox",))).count(db) == 0
