"""Scripts of queues and arguments that each program must refuse, beside those that it must not refuse."""

from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core.registry import IMPORTING, LAYOUT_COLUMN, Definition
from fdbqueue.core.root_keys import LAYOUT, RootKeys
from fdbqueue.operate.conformance import heard
from fdbqueue.tasks.groups import Group
from tests.system.vectors.script import SESSION, Script, Scripts
from tests.system.vectors.verbs import ELEMENTS, FAIR, RECIPE, ROOT, SCHEMA, SIMPLE

_NEWER = LAYOUT + 1
_PART = "a part of a newer release"
_OF_OTHERS = {RECIPE: "ttl", "fifo": "schema", ELEMENTS: "codec"}
"""An option that only queues of other kinds have."""
_GONE = "session-gone-now"
"""A session that has no key: 16 bytes."""


refusal_scripts = Scripts()


def definitions(script: Script, verb: str, options: dict[str, Any], **call: Any) -> None:
    """One call on a queue of each of these definitions."""
    kind = script.kind
    stored = {
        "of-a-newer-layout": layer.pack((1, 2, "neither a kind nor options", _NEWER, _PART)),
        "with-a-newer-option": _definition(2, kind, {**options, "a-newer-option": None}),
        "with-an-option-of-others": _definition(3, kind, {**options, _OF_OTHERS[kind]: None}),
        "of-a-newer-kind": _definition(4, "a-newer-kind", options),
        "importing": _definition(5, IMPORTING, options),
        "damaged": layer.pack((6, kind)),
        "of-layout-0": _definition(7, kind, options, ()),
        "with-a-newer-part": _definition(8, kind, options, (LAYOUT, _PART)),
    }
    script.given_keys({RootKeys(ROOT).definition(name): value for name, value in stored.items()})
    for name in ("missing", *stored):
        script.call(verb, queue=name, **call)


def _definition(id_: int, kind: str, options: dict[str, Any], version: tuple[Any, ...] = (LAYOUT,)) -> bytes:
    return Definition("", id_, kind, options, version).to_bytes()


def beside(script: Script, verb: str, **call: Any) -> None:
    """One call on a queue over a subspace with each of these layouts beside it."""
    layouts = {"%02newer%00": (_NEWER, _PART), "%02known%00": (LAYOUT, _PART)}
    column = layer.pack((LAYOUT_COLUMN,))
    script.given_keys({heard(prefix) + column: layer.pack(parts) for prefix, parts in layouts.items()})
    for prefix in layouts:
        script.call(verb, subspace=prefix, **call)


for _kind, _verb, _options, _call in (
    (RECIPE, "enqueue", {"codec": "bytes"}, {"payload": "first"}),
    ("fifo", "put", {"codec": "bytes"}, {"payload": "first"}),
    (ELEMENTS, "add", {"schema": SCHEMA}, {"pieces": {"body": "hello"}}),
):
    refusal_scripts.add(_kind, f"{_kind}-definitions")(
        partial(definitions, verb=_verb, options=_options, **_call)
    )
for _kind, _verb, _call in (
    (RECIPE, "enqueue", {"payload": "first"}),
    (FAIR, "put", {"key": "ada", "payload": "a1"}),
    (ELEMENTS, "add", {"pieces": {"body": "hello"}}),
    (SIMPLE, "add", {"payload": "hello"}),
):
    refusal_scripts.add(_kind, f"{_kind}-layouts", subspace="%02known%00")(
        partial(beside, verb=_verb, **_call)
    )


@refusal_scripts.add("fifo", "fifo-temporary", session=True)
def temporary(script: Script) -> None:
    """Temporary queues: the session of one is alive, that of the other has gone."""
    script.given_keys(
        {
            RootKeys(ROOT).definition(name): _definition(
                id_, "fifo", {"codec": "bytes", "temporary": session.encode().hex()}
            )
            for id_, (name, session) in enumerate({"of-the-taker": SESSION, "of-nobody": _GONE}.items(), 1)
        }
    )
    script.call("put", queue="of-nobody", payload="first")
    script.call("put", queue="of-the-taker", payload="first")


@refusal_scripts.add("fifo", "fifo-arguments", create={})
def arguments(script: Script) -> None:
    """Arguments that the kind does not take, and a limit that its tasks may not name."""
    for name, value in {"pri": 1, "ttl": 5, "ttr": 5, "delay": 5, "key": "ada", "cost": 2}.items():
        script.call("put", payload="first", **{name: value})
    script.call("put", payload="first", limits=["mails"])


@refusal_scripts.add("fifo", "fifo-closed-groups")
def groups(script: Script) -> None:
    """Groups that take no member, and a task that a group does not take."""
    closed, cancelled = script.given_group("the-closed-group"), script.given_group("group--cancelled")
    open_ = script.given_group()
    script.given(lambda db: Group(closed, root=ROOT).close(db))
    script.given(lambda db: Group(cancelled, root=ROOT).cancel(db))
    script.call("create", codec="bytes")
    for group in (closed, cancelled, b"no-group-is-this".hex()):
        script.call("put", payload="member", group=group)
    script.call("put", payload="member", group=open_, unique="u")
