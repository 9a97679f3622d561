"""Settings that a backend cannot use: one sentence, from the checks of the project."""

from pathlib import Path
from typing import Any

import django
import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.test.utils import override_settings

from fdbqueue.integrations.django import api
from tests.django.conftest import tasks_setting
from tests.test_extras import last_line_without


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"url": "redis://localhost"}, "'redis://localhost'"),
        ({"url": "embedded:"}, "'embedded:'"),
        ({"url": "embedded:data?durability=never"}, "'embedded:data?durability=never'"),
        ({"broker": "x"}, "OPTIONS must be"),
        ({"result_ttl": 0}, "result_ttl must be more than 0 seconds"),
        ({"attempts": "many"}, "attempts must be"),
        ({"session_ttr": -1}, "session_ttr must be"),
        ({"namespace": ""}, "namespace must be"),
    ],
)
def test_a_check_names_the_option(
    options: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens nothing."""
    monkeypatch.chdir(tmp_path)
    with override_settings(TASKS=tasks_setting(options)):
        [error] = run_checks()

        assert (error.id, error.obj) == ("fdbqueue.E001", "FdbQueueBackend")
        assert error.msg.startswith("The task backend 'default': ")
        assert sentence in error.msg
        assert "\n" not in error.msg
        with pytest.raises(api.InvalidTaskBackend, match="The task backend 'default'"):
            _ = api.task_backends["default"].database
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("backend")
def test_good_settings_have_no_errors() -> None:
    assert run_checks() == []


def test_a_worker_says_at_its_start_what_is_wrong() -> None:
    with (
        override_settings(TASKS=tasks_setting({"url": "redis://localhost"})),
        pytest.raises(CommandError) as at,
    ):
        call_command("fdbqueue_worker", skip_checks=False)

    assert "(fdbqueue.E001) The task backend 'default': 'redis://localhost' names no engine" in str(at.value)


def test_an_import_without_django_names_the_extra() -> None:
    sentence = "ModuleNotFoundError: django is not installed: pip install 'fdbqueue[django]'"

    assert last_line_without("django", "integrations.django") == sentence


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has tasks of its own")
def test_an_import_without_django_s_tasks_names_the_package() -> None:
    sentence = "ModuleNotFoundError: this Django has no tasks: pip install django-tasks, or use Django 6.0"

    assert last_line_without("django_tasks", "integrations.django") == sentence
