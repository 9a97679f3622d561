"""Shape: what there is to know of one task queue, and what belongs to none of its transactions."""

from collections.abc import Callable, Mapping
from typing import Any

from fdbqueue.aside import Aside
from fdbqueue.codec import stored_codec
from fdbqueue.disciplines.discipline import Discipline
from fdbqueue.disciplines.fifo import Fifo
from fdbqueue.disciplines.keyed import Keyed
from fdbqueue.errors import DefinitionUnreadable, InvalidArgument, UnsupportedOption
from fdbqueue.records.keys import TaskKeys
from fdbqueue.registry.registry import Definition, Registry
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Transaction
from fdbqueue.tasks.kinds import Draft, drafted, kind_named, owner_of, stored_settings
from fdbqueue.tasks.mending import Mender


class Shape:
    def __init__(self, registry: Registry, definition: Definition, type: Any = None) -> None:
        """`type` is that of the payloads. Raises UnknownKind for a kind that this process has not registered,
        DefinitionUnreadable for options of a newer release, InvalidArgument for the type, or a kind whose
        function makes no discipline.
        """
        self.registry = registry
        self.definition = definition
        self.root: RootKeys = registry.keys
        self.name = definition.name
        self.kind = kind_named(definition.kind)
        self.settings = stored_settings(definition)
        self.codec = stored_codec(self.settings.codec, type)
        self.keys = TaskKeys(registry.contents(definition))
        self.discipline = self._made_discipline()
        self.guard: Callable[[Transaction], Callable[[], None]] = registry.guard(definition)
        self.aside = Aside(self.keys.prefix, self.keys.line)
        self.mender = Mender(self.keys, self.discipline, self.aside)
        if isinstance(self.discipline, Fifo | Keyed):
            self.discipline.mend = self.mender.entry
        self.owner = owner_of(definition)

    def _made_discipline(self) -> Discipline:
        try:
            return self.kind.made(self.keys, self.settings.to_options())
        except InvalidArgument:
            raise
        except (ValueError, TypeError, LookupError) as reason:
            raise DefinitionUnreadable(name=self.name, reason=str(reason)) from reason

    def draft(self, data: Any, payload: bytes, options: Mapping[str, Any]) -> Draft:
        return drafted(self.kind, self.settings, data, payload, options)

    def require_touch(self) -> None:
        """Raises UnsupportedOption for a kind whose leases do not end on their own."""
        if not self.kind.supports("ttr"):
            raise UnsupportedOption(kind=self.kind.name, option="touch")
