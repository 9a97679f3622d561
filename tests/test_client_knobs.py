"""Programs of this package set a knob of the client library; the library sets none."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from fdbqueue.core import binding as core_binding
from fdbqueue.core.seam import FDBError

VARIABLE = "FDB_NETWORK_OPTION_KNOB"
KNOB = "future_version_retry_delay=0.001"


class Binding:
    """As much of the binding as setting a knob uses."""

    FDBError = FDBError

    def __init__(self, refusal: int | None = None) -> None:
        self.knobs: list[str] = []
        self._refusal = refusal
        self.options = SimpleNamespace(set_knob=self._set_knob)

    def _set_knob(self, knob: str) -> None:
        if self._refusal is not None:
            raise FDBError(self._refusal)
        self.knobs.append(knob)


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_binding, "_asked", False)
    monkeypatch.delenv(VARIABLE, raising=False)


def knobs_of(binding: Binding) -> list[str]:
    core_binding.hand_to(binding)
    return binding.knobs


def test_a_library_sets_no_knob() -> None:
    assert knobs_of(Binding()) == []


def test_a_program_sets_the_knob() -> None:
    core_binding.for_this_program()
    assert knobs_of(Binding()) == [KNOB]


def test_a_knob_of_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    core_binding.for_this_program()
    monkeypatch.setenv(VARIABLE, "future_version_retry_delay=0.02")
    assert knobs_of(Binding()) == []


def test_another_knob_of_the_environment_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    core_binding.for_this_program()
    monkeypatch.setenv(VARIABLE, "default_backoff=0.02")
    assert knobs_of(Binding()) == [KNOB]


def test_a_running_network_keeps_its_knobs() -> None:
    core_binding.for_this_program()
    assert knobs_of(Binding(refusal=2009)) == []


def test_an_unknown_error_of_the_client_library_is_raised() -> None:
    core_binding.for_this_program()
    with pytest.raises(FDBError):
        knobs_of(Binding(refusal=2006))


@pytest.mark.parametrize("module", ["fdbqueue.operate.cli", "loadtest.hooks"])
def test_importing_a_program_asks_for_no_knob(module: str) -> None:
    program = f"import {module}; from fdbqueue.core import binding; print(binding._asked)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout == "False\n"
