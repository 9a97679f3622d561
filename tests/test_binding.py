"""Bindings and client libraries of different releases meet in `fdbqueue.core.binding`.

Here is one library at most, so the others are stand-ins: they answer as the source of their release does.
"""

import json
import sys
import types

import pytest

import fdbqueue
from fdbqueue import embedded
from fdbqueue.core import binding, limits
from fdbqueue.core.database import is_away, require_answer
from fdbqueue.core.errors import ClientLibraryMissing, ClientLibraryTooOld, ClusterMismatch, DatabaseNotFound
from tests.support import TIMED_OUT, ManualClock

NOT_SUPPORTED = 2203
GET_CLIENT_STATUS = "fdb_database_get_client_status"
SPLIT_POINTS = "fdb_transaction_get_range_split_points_with_limit"


class Function:
    """A function of a library; ctypes lets the binding declare its types."""


class ClientVersion(Function):
    def __call__(self):
        return b"7.3.79,9d0b56b2c2,fdb00b073000000"


class Library:
    """A client library: its newest API version, and its functions beyond those of 7.1."""

    def __init__(self, newest, functions=()):
        self._newest = newest
        self.selected = []
        self.fdb_get_client_version = ClientVersion()
        for name in functions:
            setattr(self, name, Function())

    def fdb_get_max_api_version(self):
        return self._newest

    def fdb_select_api_version_impl(self, version, header_version):
        self.selected.append((version, header_version))
        return NOT_SUPPORTED if header_version > self._newest else 0


def install(monkeypatch, latest, library, needs=()):
    """Replace the binding by one of API version `latest`, which looks up the functions `needs`."""
    fake, impl = types.ModuleType("fdb"), types.ModuleType("fdb.impl")
    impl._capi, impl.FDBError, fake.impl = library, embedded.FDBError, impl
    chosen = []

    def api_version(version):
        header_version = fake.LATEST_API_VERSION
        if library.fdb_select_api_version_impl(version, header_version) == NOT_SUPPORTED:
            raise RuntimeError(f"The binding requires a library that supports API version {header_version}.")
        for name in needs:
            getattr(library, name).argtypes = []
        chosen.append(version)

    fake.LATEST_API_VERSION = latest
    fake.api_version, fake.is_api_version_selected = api_version, lambda: bool(chosen)
    monkeypatch.setattr(binding, "fdb", fake)
    monkeypatch.setattr(binding, "LATEST_API_VERSION", latest)
    monkeypatch.setitem(sys.modules, "fdb.impl", impl)
    return fake


@pytest.mark.parametrize(
    ("latest", "newest", "header_version"),
    [(800, 710, 710), (800, 730, 730), (800, 740, 740), (800, 800, 800), (710, 730, 710), (730, 800, 730)],
)
def test_the_header_version_is_one_that_the_library_knows(monkeypatch, latest, newest, header_version):
    """The older one of binding and library; the API version is 710 in any case."""
    library = Library(newest)
    fake = install(monkeypatch, latest, library)
    assert binding.load() is fake
    assert library.selected == [(710, header_version)]
    assert latest == fake.LATEST_API_VERSION


def test_a_library_may_lack_functions_that_nothing_calls(monkeypatch):
    """The binding 8.0 declares two that a library 7.1 does not have."""
    library = Library(710)
    install(monkeypatch, 800, library, needs=[GET_CLIENT_STATUS, SPLIT_POINTS])
    binding.load()
    with pytest.raises(ClientLibraryTooOld, match=SPLIT_POINTS):
        getattr(library, SPLIT_POINTS)()


def test_functions_of_the_library_are_not_replaced(monkeypatch):
    """Only missing ones are."""
    library = Library(730, [GET_CLIENT_STATUS])
    install(monkeypatch, 800, library, needs=[GET_CLIENT_STATUS, SPLIT_POINTS])
    binding.load()
    assert isinstance(getattr(library, GET_CLIENT_STATUS), Function)


def test_the_choice_of_the_program_stands(monkeypatch):
    """It has called fdb.api_version before it opened a database."""
    library = Library(730)
    fake = install(monkeypatch, 730, library)
    fake.api_version(720)
    binding.load()
    assert library.selected == [(720, 730)]


def test_a_second_load_chooses_nothing(monkeypatch):
    """The library accepts one choice per process."""
    library = Library(730)
    install(monkeypatch, 800, library)
    binding.load()
    binding.load()
    assert len(library.selected) == 1


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_library_before_7_1_is_refused_with_the_cure(monkeypatch):
    """It does not have API version 710."""
    install(monkeypatch, 800, Library(630))
    with pytest.raises(ClientLibraryTooOld) as refused:
        binding.load()
    assert "up to 630" in one_line(refused)
    assert "Install foundationdb-clients" in str(refused.value)


def test_a_library_without_a_needed_function_is_refused(monkeypatch):
    """The cure is the binding of the library's release."""
    fake = install(monkeypatch, 730, Library(710), needs=["fdb_future_get_bool"])
    with pytest.raises(ClientLibraryTooOld, match="fdb_future_get_bool") as refused:
        binding.load()
    assert "pip install 'fdbqueue[fdb" in one_line(refused)
    assert fake.LATEST_API_VERSION == 730


def test_the_reason_of_the_binding_is_kept(monkeypatch):
    """A binding that passes its own header version all the same."""
    fake = install(monkeypatch, 800, Library(730))

    def api_version(_version):
        raise RuntimeError("This version of the FoundationDB Python binding is not supported.")

    fake.api_version = api_version
    with pytest.raises(ClientLibraryTooOld, match="is not supported") as refused:
        binding.load()
    assert "Install foundationdb-clients" in one_line(refused)


def test_without_the_client_library_one_line_names_the_package(monkeypatch):
    """The error replaces the traceback of the binding."""

    def import_module(_name):
        raise Exception("Unable to locate the FoundationDB API shared library!")

    monkeypatch.setattr(binding, "importlib", types.SimpleNamespace(import_module=import_module))
    with pytest.raises(ClientLibraryMissing) as missing:
        fdbqueue.open("fdb:")
    assert "foundationdb-clients" in one_line(missing)


class Silent:
    """A cluster that answers no transaction; its client library describes the connections."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def create_transaction(self):
        raise embedded.FDBError(TIMED_OUT)

    def get_client_status(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return types.SimpleNamespace(wait=lambda: json.dumps(answer).encode())


def connection(**values):
    return {"Connections": [{"Address": "127.0.0.1:4500", **values}]}


def refused_by(protocol):
    return connection(Status="connected", Compatible=False, BytesReceived=44, ProtocolVersion=protocol)


CONNECTING = connection(Status="connecting", Compatible=True, BytesReceived=44)
DOWN = connection(Status="failed", Compatible=True, BytesReceived=0)


def ask(monkeypatch, engine, clock=None):
    install(monkeypatch, 800, Library(730))
    with fdbqueue.Database(engine, clock or ManualClock()) as database:
        require_answer(database, "fdb:", 1)


@pytest.mark.parametrize(
    ("protocol", "cluster", "cure"),
    [
        ("fdb00b063010001", "6.3", "Upgrade the cluster to 7.1"),
        ("fdb00b071010000", "7.1", "Install foundationdb-clients 7.1."),
        ("fdb00b074000000", "7.4", "Install foundationdb-clients 7.4."),
        ("fdb00b080000000", "8.0", "Install foundationdb-clients 8.0."),
    ],
)
def test_a_cluster_of_another_release_is_named_with_the_cure(monkeypatch, protocol, cluster, cure):
    """A library connects to clusters of its own minor release only."""
    with pytest.raises(ClusterMismatch) as refused:
        ask(monkeypatch, Silent(refused_by(protocol)))
    assert (refused.value.cluster, refused.value.library) == (cluster, "7.3.79")
    assert cure in one_line(refused)


def test_a_process_with_several_libraries_names_the_cluster_too(monkeypatch):
    """None of them fits; the connections are a part of the answer."""
    status = {"InitializationState": "incompatible", "ProtocolVersion": "fdb00b074000000"}
    with pytest.raises(ClusterMismatch, match=r"release 7\.4"):
        ask(monkeypatch, Silent({**status, "DatabaseStatus": DOWN}))


def test_the_connections_below_several_libraries_are_seen(monkeypatch):
    """One library is at work; its status is a part of the answer."""
    with pytest.raises(ClusterMismatch, match=r"release 7\.1"):
        ask(monkeypatch, Silent({"DatabaseStatus": refused_by("fdb00b071010000")}))


def test_a_connection_under_way_is_looked_at_again(monkeypatch):
    """The library drops and renews the connections each second."""
    with pytest.raises(ClusterMismatch):
        ask(monkeypatch, Silent(CONNECTING, CONNECTING, refused_by("fdb00b071010000")))


def test_the_looking_ends(monkeypatch):
    """Servers of the library's release that are slow to answer."""
    clock = ManualClock()
    with pytest.raises(DatabaseNotFound) as silent:
        ask(monkeypatch, Silent(CONNECTING), clock)
    assert not isinstance(silent.value, ClusterMismatch)
    assert len(clock.slept) == limits.CLIENT_STATUS_LOOKS


def test_servers_that_are_down_are_looked_at_once(monkeypatch):
    """The command line completes names, and must not be slowed down."""
    clock = ManualClock()
    with pytest.raises(DatabaseNotFound):
        ask(monkeypatch, Silent(DOWN), clock)
    assert clock.slept == []


def test_a_library_without_a_status_leaves_the_release_open(monkeypatch):
    """That of 7.1, below a newer binding."""
    engine = Silent({})
    engine.get_client_status = binding._Absent(GET_CLIENT_STATUS)
    with pytest.raises(DatabaseNotFound) as silent:
        ask(monkeypatch, engine)
    assert not isinstance(silent.value, ClusterMismatch)


class Options:
    """Those of a transaction, below a library that answers `code`."""

    def __init__(self, code):
        self.code = code

    def set_bypass_storage_quota(self):
        raise embedded.FDBError(self.code)


@pytest.mark.parametrize("options", [object(), Options(2007)])
def test_a_binding_or_library_without_quotas_is_left_alone(options):
    """The binding 7.1 lacks the option, the library 7.1 refuses it."""
    binding.bypass_storage_quota(types.SimpleNamespace(options=options))


def test_another_error_of_an_option_is_raised():
    """Only that of an unknown option says that there are no quotas."""
    with pytest.raises(embedded.FDBError):
        binding.bypass_storage_quota(types.SimpleNamespace(options=Options(2000)))


@pytest.mark.parametrize("code", [1223, 1235, 1242, 1251])
def test_a_throttled_or_locked_cluster_is_away_not_broken(code):
    """A worker tries again later."""
    assert is_away(embedded.FDBError(code))


def test_the_binding_7_1_knows_710_without_a_name_for_it():
    """Newer ones have LATEST_API_VERSION."""
    assert binding._latest_of(types.ModuleType("fdb")) == 710
