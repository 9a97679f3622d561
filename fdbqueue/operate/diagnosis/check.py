"""Diagnosis and Check: the public frozen values that `diagnose` returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """The weight of a check, in ascending order."""

    FINE = "fine"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    """Its name in docs/operations.md, such as "clocks". One check may have several results."""
    severity: Severity
    text: str
    cure: str = ""
    """The next step; empty if all is fine."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The numbers and names of the text, for programs."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks, in order."""

    checks: tuple[Check, ...]

    @property
    def severity(self) -> Severity:
        """The severity of the weightiest check."""
        order = list(Severity)
        return max((check.severity for check in self.checks), key=order.index, default=Severity.FINE)


def fine(name: str, text: str, **data: Any) -> Check:
    return Check(name, Severity.FINE, text, "", data)


def warning(name: str, text: str, cure: str, **data: Any) -> Check:
    return Check(name, Severity.WARNING, text, cure, data)


def failure(name: str, text: str, cure: str, **data: Any) -> Check:
    return Check(name, Severity.FAILURE, text, cure, data)
