"""Each peer of the benchmark does the work that the benchmark measures."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.old_layer import OldQueue
from benchmarks.peer_queues import PEERS, Where, free_port


@pytest.mark.parametrize("pop", ["pop_simple", "pop_contended"])
@pytest.mark.commits_by_hand
def test_the_old_layer_hands_out_each_item_once(db, space, pop, rounds):
    """Eight threads pop as many items as were pushed, and get each once. One more pop returns None."""
    queue = OldQueue(db, space)
    count = rounds(40, 400)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(queue.push, map(str, range(count))))
        popped = list(pool.map(lambda _: getattr(queue, pop)(), range(count)))
    assert sorted(popped, key=int) == [str(number) for number in range(count)]
    assert getattr(queue, pop)() is None


@pytest.mark.commits_by_hand
def test_the_old_layer_is_first_in_first_out(db, space):
    """For one client."""
    queue = OldQueue(db, space)
    for value in "abc":
        queue.push(value)
    assert [queue.pop_contended(), queue.pop_simple(), queue.pop_contended()] == ["a", "b", "c"]


@pytest.mark.parametrize("peer", PEERS[1:], ids=lambda peer: peer.name)
@pytest.mark.filterwarnings("ignore")  # they are others' code, and close their files when they like
def test_a_peer_returns_each_put_value(peer, tmp_path):
    """Three tasks in, three out, then nothing."""
    if reason := peer.missing():
        pytest.skip(reason)
    where = Where(str(tmp_path), f"embedded:{tmp_path}/data", free_port(), b"peers")
    with peer.running(where):
        client = peer.connect(where)
        for _ in range(3):
            client.put()
        assert [client.take() for _ in range(4)] == [True, True, True, False]
        client.close()
        del client
        gc.collect()  # while their warnings are ignored
