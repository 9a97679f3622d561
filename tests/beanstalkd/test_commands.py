"""The commands, on each engine: their replies, and the states of jobs."""

import threading

import pytest

from tests.beanstalkd.client import Client, Served, names_in, wait_for
from tests.support import wait_until


def test_a_job_is_put_reserved_and_deleted(client: Client) -> None:
    number = client.put(b"a\r\nb\0")
    assert client.reserve() == (number, b"a\r\nb\0")
    assert client.ask(f"delete {number}") == b"DELETED\r\n"
    assert client.ask(f"delete {number}") == b"NOT_FOUND\r\n"
    assert client.ask("reserve-with-timeout 0") == b"TIMED_OUT\r\n"


def test_numbers_grow(client: Client) -> None:
    first, second = client.put(), client.put()
    assert second > first


def test_urgent_jobs_come_first(client: Client) -> None:
    late, urgent, next_one = client.put(pri=9), client.put(pri=0), client.put(pri=9)
    assert [client.reserve()[0] for _ in range(3)] == [urgent, late, next_one]


def test_the_best_job_of_several_tubes_comes_first(client: Client) -> None:
    late = client.put(pri=2)
    client.ask("use other")
    client.ask("watch other")
    urgent = client.put(pri=1)
    assert [client.reserve()[0] for _ in range(2)] == [urgent, late]
    assert [client.ask(f"delete {number}") for number in (late, urgent)] == [b"DELETED\r\n"] * 2


@pytest.mark.parametrize("size", [0, 1, 256, 257, 65_535])
def test_a_body_of_any_size_comes_back(client: Client, size: int) -> None:
    body = bytes(index % 256 for index in range(size))
    number = client.put(body)
    assert client.reserve() == (number, body)
    assert client.ask(f"delete {number}") == b"DELETED\r\n"


def test_a_job_that_is_too_big_is_refused(client: Client) -> None:
    assert client.ask("put 0 0 1 65536", b"x" * 65_536) == b"JOB_TOO_BIG\r\n"
    client.send(b"put 0 0 1 3\r\n123xx")
    assert client.reply() == b"EXPECTED_CRLF\r\n"
    assert client.ask("reserve-with-timeout 0") == b"TIMED_OUT\r\n"


def test_a_reserve_waits_for_a_job(client: Client, served: Served) -> None:
    tube = client.ask("list-tube-used").split()[1].decode()
    client.send(b"reserve\r\n")
    with served.client() as producer:
        producer.ask(f"use {tube}")
        number = producer.put(b"at last")
    assert client.reply() == b"RESERVED %d 7\r\nat last\r\n" % number


def test_many_reserves_wait_for_as_many_jobs(client: Client, served: Served) -> None:
    tube = client.ask("list-tube-used").split()[1].decode()
    waiting = [served.client() for _ in range(20)]
    for one in waiting:
        one.ask(f"watch {tube}")
        one.send(b"reserve\r\n")
    numbers = [client.put() for _ in waiting]
    got = [int(one.reply().split()[1]) for one in waiting]
    assert sorted(got) == numbers
    for one in waiting:
        one.close()


def test_a_reserve_ends_at_its_timeout(client: Client) -> None:
    assert client.ask("reserve-with-timeout 1") == b"TIMED_OUT\r\n"


def test_a_delayed_job_comes_when_it_is_due(client: Client) -> None:
    number = client.put(b"later", delay=1)
    assert client.ask("peek-delayed") == b"FOUND %d 5\r\nlater\r\n" % number
    assert client.ask("reserve-with-timeout 0") == b"TIMED_OUT\r\n"
    assert client.ask("reserve-with-timeout 20") == b"RESERVED %d 5\r\nlater\r\n" % number


def test_a_lease_ends_by_time(client: Client, served: Served) -> None:
    number = client.put(ttr=1)
    client.reserve()
    assert client.ask("reserve-with-timeout 20") == b"DEADLINE_SOON\r\n"
    with served.client() as other:
        other.ask(f"watch {client.ask('list-tube-used').split()[1].decode()}")
        assert other.reserve(20)[0] == number
        assert client.ask(f"release {number} 0 0") == b"NOT_FOUND\r\n"
        assert other.figures(f"stats-job {number}")["timeouts"] == "1"


def test_a_touch_lengthens_a_lease(client: Client) -> None:
    number = client.put(ttr=100)
    client.reserve()
    assert client.ask(f"touch {number}") == b"TOUCHED\r\n"
    assert int(client.figures(f"stats-job {number}")["time-left"]) >= 98


def test_a_closed_connection_gives_its_jobs_back(client: Client, served: Served) -> None:
    number = client.put()
    tube = client.ask("list-tube-used").split()[1].decode()
    with served.client() as other:
        other.ask(f"watch {tube}")
        assert other.reserve()[0] == number
    assert client.reserve(20)[0] == number
    assert client.figures(f"stats-job {number}")["timeouts"] == "0"


def test_release_and_bury_change_the_priority(client: Client) -> None:
    first, second = client.put(pri=1), client.put(pri=2)
    client.reserve()
    assert client.ask(f"release {first} 3 0") == b"RELEASED\r\n"
    assert client.reserve()[0] == second
    assert client.ask(f"bury {second} 4") == b"BURIED\r\n"
    assert client.figures(f"stats-job {second}")["pri"] == "4"
    assert client.ask(f"kick-job {second}") == b"KICKED\r\n"
    assert [client.reserve()[0] for _ in range(2)] == [first, second]


def test_kick_takes_buried_jobs_first(client: Client) -> None:
    delayed, buried = client.put(delay=100), client.put()
    client.reserve()
    client.ask(f"bury {buried} 0")
    assert client.ask("kick 10") == b"KICKED 1\r\n"
    assert client.ask("kick 10") == b"KICKED 1\r\n"
    assert client.ask("kick 10") == b"KICKED 0\r\n"
    assert client.figures(f"stats-job {delayed}")["kicks"] == "1"
    assert {client.reserve()[0] for _ in range(2)} == {delayed, buried}


def test_many_jobs_are_kicked(client: Client) -> None:
    numbers = [client.put(delay=1_000) for _ in range(230)]
    assert client.ask("kick 225") == b"KICKED 225\r\n"
    assert client.ask("peek-delayed").split()[1] == b"%d" % numbers[225]


def test_any_job_that_is_not_held_can_be_reserved(client: Client) -> None:
    delayed, ready, buried = client.put(b"d", delay=100), client.put(b"r"), client.put(b"b")
    assert client.ask(f"reserve-job {buried}") == b"RESERVED %d 1\r\nb\r\n" % buried
    assert client.ask(f"bury {buried} 0") == b"BURIED\r\n"
    for number, body in ((delayed, b"d"), (ready, b"r"), (buried, b"b")):
        assert client.ask(f"reserve-job {number}") == b"RESERVED %d 1\r\n%b\r\n" % (number, body)
        assert client.ask(f"reserve-job {number}") == b"NOT_FOUND\r\n"
        assert client.ask(f"delete {number}") == b"DELETED\r\n"


def test_a_paused_tube_gives_no_job_until_its_time(client: Client) -> None:
    tube, number = client.ask("list-tube-used").split()[1].decode(), client.put()
    assert client.ask(f"pause-tube {tube} 1") == b"PAUSED\r\n"
    assert client.ask("reserve-with-timeout 0") == b"TIMED_OUT\r\n"
    assert client.figures(f"stats-tube {tube}")["pause"] == "1"
    assert client.reserve(20)[0] == number
    assert client.ask("pause-tube nosuch 1") == b"NOT_FOUND\r\n"


def test_tubes_are_there_while_they_are_used(client: Client, served: Served) -> None:
    with served.client() as other:
        assert other.ask("use passing") == b"USING passing\r\n"
        assert "passing" in names_in(client.ask("list-tubes"))
    wait_for(client, "stats-tube passing", b"NOT_FOUND\r\n")
    assert "passing" not in names_in(client.ask("list-tubes"))


def test_the_last_watched_tube_is_not_ignored(client: Client) -> None:
    [tube] = names_in(client.ask("list-tubes-watched"))
    assert client.ask(f"ignore {tube}") == b"NOT_IGNORED\r\n"
    assert client.ask("ignore nosuch") == b"WATCHING 1\r\n"
    assert client.ask("watch nosuch") == b"WATCHING 2\r\n"


def test_statistics_tell_of_commands(client: Client) -> None:
    before = client.figures("stats")
    number = client.put(pri=5, delay=0)
    client.reserve()
    client.ask(f"release {number} 6 0")
    after = client.figures("stats")
    job = client.figures(f"stats-job {number}")
    assert int(after["cmd-put"]) == int(before["cmd-put"]) + 1
    assert int(after["current-jobs-ready"]) == int(before["current-jobs-ready"]) + 1
    assert int(after["current-jobs-urgent"]) == int(before["current-jobs-urgent"]) + 1
    wanted = {"state": "ready", "pri": "6", "ttr": "100", "reserves": "1", "releases": "1", "buries": "0"}
    assert {name: job[name] for name in wanted} == wanted


def test_only_connections_use_a_tube(client: Client) -> None:
    wait_until(lambda: client.figures("stats-tube default")["current-using"] == "0")
    tube, number = client.ask("list-tube-used").split()[1].decode(), client.put()
    client.ask(f"delete {number}")
    assert client.figures(f"stats-tube {tube}")["cmd-delete"] == "1"


def test_commands_are_answered_in_order(client: Client) -> None:
    client.send(b"put 0 0 9 1\r\na\r\nreserve-with-timeout 0\r\nlist-tube-used\r\nfoo\r\n")
    replies = [client.reply().split()[0] for _ in range(4)]
    assert replies == [b"INSERTED", b"RESERVED", b"USING", b"UNKNOWN_COMMAND"]


def test_commands_of_many_connections_lose_nothing(client: Client, served: Served) -> None:
    tube, done = client.ask("list-tube-used").split()[1].decode(), []

    def work() -> None:
        with served.client() as worker:
            worker.ask(f"use {tube}")
            worker.ask(f"watch {tube}")
            for _ in range(20):
                worker.put()
                number, _ = worker.reserve(20)
                assert worker.ask(f"delete {number}") == b"DELETED\r\n"
                done.append(number)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == len(set(done)) == 160
    assert client.figures(f"stats-tube {tube}")["current-jobs-reserved"] == "0"
