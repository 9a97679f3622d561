"""The Dockerfile: the rules of a linter that matter here. No image is built."""

import fnmatch
import stat

import pytest

from tests.docker.files import DOCKER, TREE, ancestry, dockerfile, is_exec_form, is_pinned

ARGUMENTS, STAGES = dockerfile()
SHIPPED = ["worker", "loadtest"]


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda stage: stage.name)
def test_each_base_image_has_a_version(stage):
    """No `latest`, no tag that moves under a build."""
    base = stage.base.replace("${FDB_VERSION}", ARGUMENTS["FDB_VERSION"])
    assert base in STAGES or is_pinned(base)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_container_runs_without_root_and_says_how_it_is(name):
    """The user is set before anything runs, and never set back."""
    stages = list(ancestry(STAGES, name))
    users = [user for stage in stages for user in stage.all("USER")]
    assert users
    assert not {"root", "0"} & set(users)
    assert [check for stage in stages for check in stage.all("HEALTHCHECK")]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_program_gets_the_signals(name):
    """Commands are lists: a shell in between would keep them."""
    stages = list(ancestry(STAGES, name))
    commands = [text for stage in stages for word in ("ENTRYPOINT", "CMD") for text in stage.all(word)]
    checks = [text.rpartition("CMD ")[2] for stage in stages for text in stage.all("HEALTHCHECK")]
    assert len(commands) >= 2
    assert all(is_exec_form(text) for text in [*commands, *checks])


@pytest.mark.parametrize("name", SHIPPED)
def test_what_built_an_image_does_not_ship_with_it(name):
    """Compilers and caches stay behind: the final images run nothing but useradd."""
    for stage in ancestry(STAGES, name):
        assert all(command.startswith("useradd") for command in stage.all("RUN"))
        assert not stage.all("ADD")


def test_packages_leave_no_cache():
    """The images keep no cache of pip or apt."""
    for stage in STAGES.values():
        for command in stage.all("RUN"):
            if "apt-get" in command:
                assert "--no-install-recommends" in command
                assert "rm -rf /var/lib/apt/lists" in command
            if "pip install" in command:
                environment = " ".join(e for above in ancestry(STAGES, stage.name) for e in above.all("ENV"))
                assert "PIP_NO_CACHE_DIR=1" in environment


def copies():
    for stage in STAGES.values():
        for text in stage.all("COPY"):
            words = text.split()
            flags = [word for word in words if word.startswith("--")]
            yield flags, [word for word in words if not word.startswith("--")][:-1]


def test_each_copied_file_exists():
    """From the tree, where .dockerignore lets it through, or from a stage that exists."""
    allowed = [line[1:] for line in (TREE / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for flags, sources in copies():
        origin = [flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")]
        if origin:
            assert origin[0] in STAGES
            continue
        for source in sources:
            assert (TREE / source).exists(), source
            assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed), source


@pytest.mark.parametrize("name", ["entrypoint.sh", "healthcheck.py", "init-cluster.sh"])
def test_scripts_are_executable(name):
    """Where they lie, too: the tests start them there."""
    assert (DOCKER / name).stat().st_mode & stat.S_IXUSR
