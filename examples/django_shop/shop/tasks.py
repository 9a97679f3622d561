"""The tasks of the shop."""

try:
    from django.tasks import task
except ModuleNotFoundError:  # Django 5.2, with the package django-tasks
    from django_tasks import task


@task(queue_name="mails", priority=10)
def confirm(number: int, name: str) -> str:
    return f"order {number} is yours, {name}"
