"""Functions as tasks: their calls are put, refused, run, retried and found again by name."""

import asyncio
import pickle
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import (
    Backoff,
    Database,
    DeadLetters,
    Group,
    Schedule,
    TaskFunction,
    TaskQueue,
    Tasks,
    TaskState,
    Transaction,
    Worker,
    aio,
    current_task,
    group,
    transactional,
)
from fdbqueue.core.errors import (
    DeferredBody,
    FunctionNotFound,
    InvalidArgument,
    NotADatabase,
    PayloadUnsupported,
    QueueNotFound,
    WrongType,
)
from fdbqueue.core.task import Why
from fdbqueue.testing.pytest_plugin.running import Runner, ShiftedRuntime

if TYPE_CHECKING:
    from fdbqueue import Limit

SOON = Backoff(first_s=0.01, cap_s=0.02)
sent: list[Any] = []


def send(to: str, subject: str = "hi") -> str:
    """Send an e-mail."""
    sent.append((to, subject))
    return to.upper()


def add(first: int, /, *more: int, scale: float = 1, **named: int) -> float:
    return scale * (first + sum(more) + sum(named.values()))


def note(tr: Transaction, key: str, value: str) -> str:
    tr[bytes.fromhex(key)] = value.encode()
    return value


def tell(fraction: float) -> int:
    current_task().progress(fraction)
    return current_task().attempts


async def later(to: str) -> str:
    await asyncio.sleep(0)
    task = aio.current_task()
    await task.progress(0.5)
    return f"{to} {task.attempts}"


async def note_later(tr: aio.Transaction, key: str, value: str) -> str:
    tr.set(bytes.fromhex(key), value.encode())
    return f"{value} {(await tr.get(b'no such key')).present()}"


def which_face(own: bool) -> str:
    task = aio.current_task() if own else current_task()
    return type(task).__name__


def hinted(
    number: int,
    words: list[str] | None = None,
    when: datetime | None = None,
    mode: Literal["a", "b"] = "a",
    ready: Callable[[], bool] | int = 0,
) -> None: ...


def unknown_hint(limit: "Limit", number: int) -> None: ...


def yields() -> Iterator[int]:
    yield 1


class Shop:
    def send(self) -> None: ...

    @staticmethod
    def static() -> None: ...


pytestmark = pytest.mark.usefixtures("queue", "workers_end_soon")


@pytest.fixture(autouse=True)
def _none_sent() -> None:
    sent.clear()


@pytest.fixture
def tasks(space: Subspace) -> Tasks:
    return Tasks("emails", root=space["root"])


@pytest.fixture
def queue(db: Database, space: Subspace) -> TaskQueue:
    return TaskQueue.create(db, "emails", "fifottl", ttr=60, root=space["root"])


@pytest.fixture
def work(db: Database, queue: TaskQueue, tasks: Tasks, space: Subspace) -> Callable[..., None]:
    def run(handler: Any = tasks, **options: Any) -> None:
        settings: dict[str, Any] = {"attempts": 2, "backoff": SOON, **options}
        Worker(db, queue, handler, root=space["root"], **settings).run(until_empty=True)

    return run


def ends(db: Database, queue: TaskQueue) -> dict[str, int]:
    return {name: number for name, number in queue.statistics(db)["ends"].items() if number}


# Puts.


def test_a_decorated_function_is_called_as_before(tasks: Tasks) -> None:
    decorated = tasks.task(send)
    assert decorated("ada", subject="yes") == "ADA"
    assert (decorated.__name__, decorated.__doc__) == ("send", "Send an e-mail.")
    assert sent == [("ada", "yes")]


def test_a_put_stores_the_name_and_the_arguments_as_given(
    db: Database, queue: TaskQueue, tasks: Tasks
) -> None:
    task = tasks.task(send).put(db, "ada", subject="yes")
    assert task.data == {"function": "send", "args": ["ada"], "kwargs": {"subject": "yes"}}
    assert queue.peek(db, task).data == task.data


def test_a_put_in_a_transaction_is_a_part_of_it(db: Database, queue: TaskQueue, tasks: Tasks) -> None:
    decorated = tasks.task(send)

    @transactional
    def put(tr: Transaction, fails: bool) -> None:
        decorated.put(tr, "ada")
        decorated.put(tr, "bob")
        if fails:
            raise RuntimeError

    put(db, fails=False)
    with pytest.raises(RuntimeError):
        put(db, fails=True)
    assert queue.statistics(db)["tasks"]["ready"] == 2


def test_a_queue_that_was_dropped_and_made_again_is_found(
    db: Database, tasks: Tasks, space: Subspace
) -> None:
    decorated, in_transaction = tasks.task(send), transactional(partial(_put_in, tasks.task(name="b")(send)))
    for put in (decorated.put, in_transaction):
        put(db, "ada")
        TaskQueue.open(db, "emails", root=space["root"]).drop(db)
        with pytest.raises(QueueNotFound):
            put(db, "ada")
        again = TaskQueue.create(db, "emails", "fifottl", root=space["root"])
        put(db, "bob")
        [task] = again.tasks(db, TaskState.READY, 10)
        assert task.data["args"] == ["bob"]


def _put_in(function: TaskFunction[..., ..., Any], tr: Transaction, to: str) -> None:
    function.put(tr, to)


def test_a_queue_of_a_failed_transaction_is_not_remembered(db: Database, space: Subspace) -> None:
    decorated = Tasks("others", root=space["root"]).task(send)

    @transactional
    def create(tr: Transaction, fails: bool) -> TaskQueue:
        made = TaskQueue.create(tr, "others", "fifottl", ttl=60, root=space["root"])
        decorated.put(tr, "ada")
        if fails:
            raise RuntimeError
        return made

    with pytest.raises(RuntimeError):
        create(db, fails=True)
    assert create(db, fails=False).statistics(db)["tasks"]["ready"] == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, r"send\(\) cannot be called so: missing a required argument: 'to'"),
        (("ada", "yes", "no"), {}, "too many positional arguments"),
        (("ada",), {"to": "bob"}, "multiple values for argument 'to'"),
        (("ada",), {"cc": "bob"}, "unexpected keyword argument 'cc'"),
        ((5,), {}, r"to of send\(\) must be of type str, not 5"),
        (("ada",), {"subject": None}, r"subject of send\(\) must be of type str, not None"),
    ],
)
def test_a_wrong_call_is_a_type_error_at_the_put(
    db: Database, queue: TaskQueue, tasks: Tasks, args: Any, kwargs: Any, said: str
) -> None:
    decorated: Any = tasks.task(send)
    for call in (partial(decorated.put, db), decorated.call):
        with pytest.raises(TypeError, match=said) as raised:
            call(*args, **kwargs)
        assert isinstance(raised.value, fdbqueue.FdbQueueError)
    assert queue.statistics(db)["tasks"]["total"] == 0


def test_data_that_the_codec_cannot_carry_is_refused(db: Database, tasks: Tasks) -> None:
    decorated: Any = tasks.task(name="any")(_anything)
    with pytest.raises(PayloadUnsupported, match=r'data\["args"\]\[0\]'):
        decorated.put(db, {1, 2})


def _anything(value):  # type: ignore[no-untyped-def]  # without a hint
    return value


def test_a_put_needs_a_database_first(tasks: Tasks) -> None:
    decorated: Any = tasks.task(send)
    for arguments in (("ada",), ("ada", "yes")):
        with pytest.raises(NotADatabase):
            decorated.put(*arguments)


RIGHT: list[dict[str, Any]] = [
    {"number": 1, "words": ["a"]},
    {"number": True, "words": None, "mode": "b"},
    {"number": 1, "ready": len},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"number": "1"}, "number"),
    ({"number": 1.0}, "number"),
    ({"number": 1, "words": ["a", 2]}, "words"),
    ({"number": 1, "words": "abc"}, "words"),
    ({"number": 1, "when": "2026-01-01T00:00:00"}, "when"),
    ({"number": 1, "mode": "c"}, "mode"),
]


@pytest.mark.parametrize("arguments", RIGHT)
def test_values_of_their_types_fit(tasks: Tasks, arguments: dict[str, Any]) -> None:
    assert tasks.task(hinted).call(**arguments).data["kwargs"] == arguments


@pytest.mark.parametrize(("arguments", "place"), WRONG)
def test_a_value_of_another_type_than_its_hint_is_refused(
    tasks: Tasks, arguments: dict[str, Any], place: str
) -> None:
    with pytest.raises(WrongType, match=rf"{place} of hinted\(\) must be of type"):
        tasks.task(hinted).call(**arguments)


def test_all_kinds_of_parameters_are_checked(tasks: Tasks) -> None:
    decorated: Any = tasks.task(add)
    assert decorated.call(1, 2, 3, scale=2, b=4).data["args"] == [1, 2, 3]
    with pytest.raises(WrongType, match=r"more\[1\] of add"):
        decorated.call(1, 2, "3")
    with pytest.raises(WrongType, match=r"b of add"):
        decorated.call(1, b="4")


def test_hints_for_type_checkers_only_are_not_checked(tasks: Tasks) -> None:
    decorated: Any = tasks.task(unknown_hint)
    assert decorated.call(1, "2").data["args"] == [1, "2"]


# Names.


def test_a_name_is_that_of_the_function_or_the_one_that_is_given(tasks: Tasks) -> None:
    assert tasks.task(send).name == "send"
    assert tasks.task(name="welcome")(send).name == "welcome"
    assert [*tasks.functions] == ["send", "welcome"]


def test_the_module_is_no_part_of_a_name(db: Database, queue: TaskQueue, tasks: Tasks) -> None:
    """So a task that waits survives a move of its function."""
    before = tasks.task(send).call("ada")
    moved = Tasks("emails")
    namespace: dict[str, Any] = {"__name__": "shop.other"}
    exec("def send(to): return 'moved ' + to", namespace)
    moved.task(namespace["send"])
    task = queue.put(db, before.data)
    assert moved(task) == "moved ada"


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (lambda: None, InvalidArgument, "a lambda has no name"),
        (Shop.send, InvalidArgument, "a task has no `self`"),
        (Shop.static, InvalidArgument, "a task has no `self`"),
        (Shop().send, WrongType, "a function of a module"),
        (Shop, WrongType, "a function of a module"),
        (partial(send, "ada"), WrongType, "a function of a module"),
        (print, WrongType, "a function of a module"),
        (yields, DeferredBody, "not a generator function"),
    ],
)
def test_what_is_no_function_of_a_module_is_refused(
    tasks: Tasks, function: Any, error: type[Exception], said: str
) -> None:
    for decorate in (tasks.task, tasks.task(name="given")):
        with pytest.raises(error, match=said):
            decorate(function)
    assert tasks.functions == {}


def test_a_function_within_another_one_needs_a_name(tasks: Tasks) -> None:
    def inner() -> None: ...

    with pytest.raises(InvalidArgument, match="or one with a name="):
        tasks.task(inner)
    assert tasks.task(name="inner")(inner).name == "inner"


def test_a_name_is_there_once(tasks: Tasks) -> None:
    tasks.task(send)
    for decorate in (tasks.task, tasks.task(name="send")):
        with pytest.raises(InvalidArgument, match=r"name must be another one: .*emails.* has <function send"):
            decorate(send)


@pytest.mark.parametrize("name", ["", 5, "x" * 201])
def test_a_name_is_a_short_text(tasks: Tasks, name: Any) -> None:
    with pytest.raises(InvalidArgument, match="name must be a text of 1 to 200 bytes"):
        tasks.task(name=name)(send)


@pytest.mark.parametrize("queue_name", ["", None, 5])
def test_tasks_need_the_name_of_a_queue(queue_name: Any) -> None:
    with pytest.raises(InvalidArgument):
        Tasks(queue_name)


def test_a_decorated_function_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(OF_THE_MODULE)) is OF_THE_MODULE


module = Tasks("of the module")


@module.task
def of_the_module() -> None: ...


OF_THE_MODULE = of_the_module


# Options.


def test_options_of_the_decorator_and_of_one_put(db: Database, tasks: Tasks) -> None:
    decorated = tasks.task(pri=3, headers={"a": "b"}, result_ttl=60)(send)
    put = decorated.put(db, "ada")
    other = decorated.options(pri=4, delay=60, result_ttl=None).put(db, "ada")
    assert (put.pri, put.headers, put.result_ttl, put.state) == (3, {"a": "b"}, 60, TaskState.READY)
    assert (other.pri, other.headers, other.result_ttl, other.state) == (
        4,
        {"a": "b"},
        None,
        TaskState.DELAYED,
    )
    assert decorated.put(db, "ada").pri == 3


def test_attempts_of_a_put_go_before_those_of_the_worker(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None]
) -> None:
    decorated = tasks.task(attempts=5, backoff=SOON)(_fails)
    often = decorated.put(db)
    twice = decorated.options(attempts=2, backoff=Backoff(first_s=0.02, cap_s=0.03)).put(db)
    work(attempts=1, backoff=Backoff(1_000, cap_s=1_000))  # its own pause would outlast the test
    assert [len(queue.failures(db, task)) for task in (often, twice)] == [5, 2]
    assert (often.attempts_max, twice.attempts_max) == (5, 2)


def _fails() -> None:
    raise ConnectionError("away")


def test_an_option_may_be_a_function_of_the_arguments(db: Database, tasks: Tasks) -> None:
    decorated = tasks.task(unique=lambda to, **_: to, headers=lambda subject, **_: {"about": subject})(send)
    first = decorated.put(db, "ada")
    assert (first.unique, first.headers) == ("ada", {"about": "hi"})
    assert decorated.put(db, to="ada", subject="yes").existed
    assert not decorated.put(db, "bob", "yes").existed
    assert not decorated.options(unique=None).put(db, "ada").existed


def test_such_a_function_gets_the_named_arguments_of_any_call(tasks: Tasks) -> None:
    decorated = tasks.task(name="add", key=lambda first, scale, **named: (first, scale, named["b"]))(add)
    assert decorated.call(1, 2, b=3).options == {"key": (1, 1, 3)}


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"dely": 1}, WrongType, "There is no option 'dely' of a put: after, "),
        ({"delay": "1"}, InvalidArgument, "delay must be seconds"),
        ({"ttl": -1}, InvalidArgument, "ttl must be more than 0 seconds"),
        ({"pri": 1.5}, InvalidArgument, "pri must be a whole number"),
        ({"headers": {"a": 1}}, InvalidArgument, "headers"),
        ({"attempts": 0}, InvalidArgument, "attempts must be a whole number from 1 to "),
        ({"backoff": 5}, InvalidArgument, "backoff must be fdbqueue.Backoff"),
        ({"scope": "queued"}, InvalidArgument, "unique must be a unique key for these options"),
        ({"unique": lambda to: to}, InvalidArgument, "unique must be a function of all arguments of "),
        ({"unique": str}, InvalidArgument, "unique must be a function of all arguments of "),
        ({"unique": yields}, DeferredBody, "unique must be a plain function"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_given(
    tasks: Tasks, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    decorated = tasks.task(send)
    with pytest.raises(error, match=said):
        decorated.options(**options)
    with pytest.raises(error, match=said):
        tasks.task(name="other", **options)(send)
    assert [*tasks.functions] == ["send"]


# Runs.


def test_a_worker_runs_each_function_with_its_arguments(
    db: Database, tasks: Tasks, work: Callable[..., None]
) -> None:
    decorated, sums = tasks.task(result_ttl=60)(send), tasks.task(result_ttl=60)(add)
    first, second = decorated.put(db, "ada", subject="yes"), sums.put(db, 1, 2, scale=2, b=3)
    work()
    assert sent == [("ada", "yes")]
    assert (decorated.result(db, first, timeout=0), sums.result(db, second.id, 0)) == ("ADA", 12)


def test_a_call_of_another_language_may_leave_out_empty_parts(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None]
) -> None:
    tasks.task(send)
    queue.put(db, {"function": "send", "args": ["ada"]})
    queue.put(db, {"function": "send", "kwargs": {"to": "bob"}})
    work(threads=1)
    assert sent == [("ada", "hi"), ("bob", "hi")]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"function": "nope"}, r"No function named 'nope' here: Tasks\('emails'\) has send\."),
        ({"function": "send", "arguments": []}, "The data is no call of a function, but "),
        ({"function": 3}, "no call of a function"),
        ({"args": []}, "no call of a function"),
        ({"function": "send", "args": {"to": "ada"}}, "no call of a function"),
        ({"function": "send", "kwargs": ["ada"]}, "no call of a function"),
        ("send", "The data is no call of a function, but 'send'"),
    ],
)
def test_a_task_without_a_function_is_tried_again_then_buried(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None], data: Any, said: str
) -> None:
    tasks.task(send)
    task = queue.put(db, data)
    work()
    explained = queue.explain(db, task)
    assert [failure.error for failure in queue.failures(db, task)] == ["FunctionNotFound"] * 2
    assert explained.last_failure is not None
    assert explained.reasons[0].why == Why.BURIED
    assert re.search(said, explained.last_failure.message)


def test_a_process_with_the_function_runs_it_after_the_backoff(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None], space: Subspace
) -> None:
    tasks.task(send)
    newer = Tasks("emails", root=space["root"])
    task = newer.task(add).put(db, 1)

    def deploy(*_: object) -> None:
        tasks.task(add)

    work(hooks=fdbqueue.Hooks(retried=deploy))
    assert ends(db, queue) == {"acked": 1}
    with pytest.raises(fdbqueue.TaskNotFound):
        queue.peek(db, task)


def test_a_redrive_brings_calls_back(
    db: Database, tasks: Tasks, work: Callable[..., None], space: Subspace
) -> None:
    tasks.task(send).put(db, "ada")
    work(Tasks("emails"))
    letters = DeadLetters.open(db, "emails", root=space["root"])
    [found] = letters.classes(db)
    assert (found.error, found.tasks) == ("FunctionNotFound", 1)
    letters.begin_redrive(db)
    letters.run_redrive(db)
    work()
    assert sent == [("ada", "hi")]


def test_the_arguments_of_other_programs_are_refused_by_the_call(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None]
) -> None:
    tasks.task(send)
    task = queue.put(db, {"function": "send", "args": []})
    work(attempts=1)
    [failure] = queue.failures(db, task)
    assert (failure.error, "missing 1 required positional argument: 'to'" in failure.message) == (
        "TypeError",
        True,
    )


def test_a_function_reaches_its_task(db: Database, tasks: Tasks, work: Callable[..., None]) -> None:
    decorated = tasks.task(result_ttl=60)(tell)
    task = decorated.put(db, 0.5)
    work()
    assert decorated.result(db, task) == 1
    with pytest.raises(InvalidArgument, match="No worker runs a function"):
        decorated(0.5)


def test_a_transactional_function_writes_with_its_ack(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None], space: Subspace
) -> None:
    """The others of its Tasks run outside a transaction."""
    decorated, plain = tasks.task(transactional=True, result_ttl=60)(note), tasks.task(tell)
    key = space["note"].key()
    task = decorated.put(db, key.hex(), "done")
    plain.put(db, 0.5)
    assert task.data["args"] == [key.hex(), "done"]
    work(attempts=1)
    assert bytes(db[key]) == b"done"
    assert decorated.result(db, task) == "done"
    assert ends(db, queue) == {"acked": 2}
    with pytest.raises(WrongType, match="missing a required argument: 'value'"):
        decorated.put(db, key.hex())  # type: ignore[call-arg]


def test_a_transactional_function_that_fails_writes_nothing(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None], space: Subspace
) -> None:
    tasks.task(transactional=True, name="note")(_note_and_fail)
    task = queue.put(db, {"function": "note", "args": [space["note"].key().hex()]})
    work(attempts=1)
    assert db[space["note"]] is None
    assert queue.peek(db, task).state == TaskState.BURIED


def test_a_transactional_worker_runs_functions_in_transactions(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None]
) -> None:
    """So none of them may tell its progress, which is a write of its own."""
    task = tasks.task(tell).put(db, 0.5)
    work(attempts=1, transactional=True)
    assert queue.failures(db, task)[-1].error == "InvalidArgument"


def _note_and_fail(tr: Transaction, key: str) -> None:
    tr[bytes.fromhex(key)] = b"never"
    raise ValueError(key)


def _no_parameter() -> None: ...


def test_a_transactional_function_takes_a_transaction(tasks: Tasks) -> None:
    with pytest.raises(InvalidArgument, match="with `tr` as its first"):
        tasks.task(transactional=True)(_no_parameter)


def test_a_worker_takes_no_single_function(
    db: Database, queue: TaskQueue, tasks: Tasks, space: Subspace
) -> None:
    with pytest.raises(InvalidArgument, match="handler must be its Tasks"):
        Worker(db, queue, tasks.task(send), root=space["root"])


# Coroutine functions.


def test_coroutine_functions_and_plain_ones_run_in_one_worker(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None]
) -> None:
    awaited, plain = tasks.task(result_ttl=60)(later), tasks.task(result_ttl=60)(send)
    faces = tasks.task(result_ttl=60)(which_face)
    put = [awaited.put(db, "ada"), plain.put(db, "bob"), faces.put(db, own=False)]
    wrong = faces.put(db, own=True)
    queue.put(db, {"function": "nope"})
    work()
    assert [queue.result(db, task) for task in put] == ["ada 1", "BOB", "HeldTask"]
    assert "call fdbqueue.current_task there" in queue.failures(db, wrong)[0].message
    assert {task.failures for task in queue.tasks(db, TaskState.BURIED, 10)} == {2}


def test_a_transactional_coroutine_function(
    db: Database, tasks: Tasks, work: Callable[..., None], space: Subspace
) -> None:
    decorated = tasks.task(transactional=True, result_ttl=60)(note_later)
    task = decorated.put(db, space["note"].key().hex(), "done")
    work()
    assert (decorated.result(db, task), bytes(db[space["note"]])) == ("done False", b"done")


def test_no_plain_function_in_a_transaction_on_an_event_loop(
    db: Database, queue: TaskQueue, tasks: Tasks, space: Subspace
) -> None:
    tasks.task(transactional=True)(note)
    tasks.task(later)
    with pytest.raises(InvalidArgument, match="note must be a coroutine function, as it is transactional"):
        Worker(db, queue, tasks, root=space["root"])


# Schedules, groups and others.


def test_a_schedule_puts_calls(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None], space: Subspace
) -> None:
    data, options = tasks.task(pri=2, key=None)(send).call("ada", subject="daily")
    schedule = Schedule.create(
        db, "daily", every=3600, queue=tasks.queue, data=data, root=space["root"], **options
    )
    schedule.run(db)
    [task] = queue.tasks(db, TaskState.READY, 10)
    work()
    assert (sent, task.pri) == ([("ada", "daily")], 2)


def test_a_group_and_its_then_are_calls(
    db: Database, queue: TaskQueue, tasks: Tasks, work: Callable[..., None], space: Subspace
) -> None:
    decorated = tasks.task(send)

    @transactional
    def put(tr: Transaction) -> Group:
        with group(tr, then=(queue, *decorated.call("boss")), root=space["root"]) as members:
            decorated.options(group=members.id).put(tr, "ada")
            data, options = decorated.call("bob")
            members.put(queue, data, **options)
            return members.group

    made = put(db)
    work(threads=1)
    assert sorted(sent[:2]) == [("ada", "hi"), ("bob", "hi")]
    assert sent[2:] == [("boss", "hi")]
    assert made.progress(db).done == 2


def test_a_call_waits_for_another_task(db: Database, tasks: Tasks, work: Callable[..., None]) -> None:
    decorated = tasks.task(send)
    first = decorated.options(pri=9).put(db, "first")
    decorated.options(after=first).put(db, "second")
    work(threads=1)
    assert [to for to, _ in sent] == ["first", "second"]


def test_the_runner_of_the_pytest_plugin_runs_functions() -> None:
    tasks = Tasks("emails")
    decorated = tasks.task(delay=3600)(send)
    with fdbqueue.open("memory:", runtime=ShiftedRuntime()) as db:
        TaskQueue.create(db, "emails", "fifottl", ttr=60)
        decorated.put(db, "ada")
        assert Runner(db)("emails", tasks).done == 1
        TaskQueue.open(db, "emails").put(db, {"function": "nope"})
        with pytest.raises(FunctionNotFound, match="'nope'"):
            Runner(db)("emails", tasks)
    assert sent == [("ada", "hi")]
