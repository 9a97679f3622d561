"""`manage.py order NUMBER NAME`: place an order, and wait for its confirmation."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

import fdbqueue.integrations.django

from ...orders import place


class Command(BaseCommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("number", type=int)
        parser.add_argument("name")

    def handle(self, **options: Any) -> None:
        result = place(fdbqueue.integrations.django.database(), options["number"], options["name"])
        fdbqueue.integrations.django.wait(result, timeout=60)
        self.stdout.write(result.return_value)
