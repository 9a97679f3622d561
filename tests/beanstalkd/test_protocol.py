"""Lines become commands, as beanstalkd reads them."""

import pytest

from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.protocol import BAD_FORMAT, UNKNOWN_COMMAND, Command, command_of


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"put 1 2 3 4", Command("put", (1, 2, 3, 4))),
        (b"put  1   2 3 4", Command("put", (1, 2, 3, 4))),
        (b"put 4294967295 4294967295 4294967295 4294967295", Command("put", (2**32 - 1,) * 4)),
        (b"put 1 2 3 4x", Command("put", (1, 2, 3, 4), rest=b"x")),
        (b"peek 18446744073709551615", Command("peek", (2**64 - 1,))),
        (b"reserve", Command("reserve")),
        (b"reserve-with-timeout 5 x", Command("reserve-with-timeout", (5,), rest=b" x")),
        (b"release 1 2 3", Command("release", (1, 2, 3))),
        (b"kick 5x", Command("kick", (5,))),
        (b"kick -1", Command("kick", (2**32 - 1,))),
        (b"kick-job 7", Command("kick-job", (7,))),
        (b"quitting", Command("quit", rest=b"ting")),
        (b"use a-b+c/d;e.f$g_h(i)", Command("use", tube="a-b+c/d;e.f$g_h(i)")),
        (b"watch " + b"x" * 200, Command("watch", tube="x" * 200)),
        (b"pause-tube a 9", Command("pause-tube", (9,), "a")),
        (b"list-tubes", Command("list-tubes")),
        (b"list-tubes-watched", Command("list-tubes-watched")),
    ],
)
def test_a_line_becomes_a_command(line: bytes, command: Command) -> None:
    assert command_of(line) == command


@pytest.mark.parametrize(
    "line",
    [
        *(b"put 1 2 3", b"put 4294967296 0 1 0", b"put -1 0 1 0", b"put +1 0 1 0", b"put a 0 1 0"),
        *(b"delete 1 ", b"delete ", b"delete 18446744073709551616", b"release 1 2", b"bury 1"),
        *(b"reserve ", b"reservex", b"reserve-with-timeout x", b"reserve-with-timeout 2147483648", b"kick "),
        *(b"use -a", b"use a b", b"use \xff", b"use " + b"x" * 201, b"use a*", b"watch ", b"ignore a\x00"),
        *(b"pause-tube a", b"pause-tube -a 1", b"pause-tube a 4294967296", b"pause-tube a 1 ", b"stats x"),
    ],
)
def test_a_line_of_another_form_is_refused(line: bytes) -> None:
    assert command_of(line) == BAD_FORMAT


@pytest.mark.parametrize(
    "line", [b"", b"PUT 1 2 3 4", b" put 1 2 3 4", b"put", b"delete", b"\xff\xfe", b"sta"]
)
def test_an_unknown_word_is_told(line: bytes) -> None:
    assert command_of(line) == UNKNOWN_COMMAND


def test_replies_have_the_size_of_their_body() -> None:
    assert protocol.with_body("FOUND", 7, b"\r\n\0") == b"FOUND 7 3\r\n\r\n\0"
    assert protocol.listing(["a", "b"]) == b"OK 12\r\n---\n- a\n- b\n"
    assert protocol.figures({"id": 1}) == b"OK 10\r\n---\nid: 1\n"
