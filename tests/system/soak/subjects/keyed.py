"""Task queues with keys of tasks: micro-queues, fair rounds, and partitions that change."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from fdbqueue.core.errors import RepartitionUnderWay
from tests.system.soak.client import Client
from tests.system.soak.order import ends_in_turn, in_turn_by_key, one_at_a_time
from tests.system.soak.rules import LEASED, Rule
from tests.system.soak.subjects.leases import Leased

COLOURS = ("red", "green", "blue", "white", "grey", "black", "brown", "pink")


class Coloured(Leased):
    """Tasks with a key, by which they are in order."""

    keys = COLOURS

    def put_options(self, key: str) -> Mapping[str, Any]:
        return {"key": key}


class Keyed(Coloured):
    """At most one task of a key is taken at a time, so all of its tasks end in order."""

    name = "keyed"
    kind = "utubettl"
    rules: ClassVar[Sequence[Rule]] = (*LEASED, in_turn_by_key, ends_in_turn, one_at_a_time)


class FairTasks(Coloured):
    name = "fairtasks"
    kind = "fair"
    rules = (*LEASED, in_turn_by_key)

    def options(self) -> Mapping[str, Any]:
        return {"weights": {"red": 3}}


class Partitions(Keyed):
    """As keyed, in partitions. Their number changes."""

    name = "partitions"
    numbers: ClassVar[Sequence[int]] = (1, 2, 3, 5)

    def options(self) -> Mapping[str, Any]:
        return {"partitions": 3}

    def step(self, client: Client) -> None:
        if client.chance(0.02):
            with suppress(RepartitionUnderWay):
                self.queue.repartition(client.db, client.random.choice(self.numbers))
        super().step(client)
