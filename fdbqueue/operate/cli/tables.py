"""Rows as a table, for a terminal."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fdbqueue.core.visible import visible

Row = Mapping[str, Any]


def print_table(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]]) -> None:
    Console(highlight=False).print(table_of(rows, columns))


def table_of(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = [[cell(row) for cell in columns.values()] for row in rows]
    for number, name in enumerate(columns):
        numeric = bool(shown) and all(_is_numeric(cells[number]) for cells in shown)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for cells in shown:
        table.add_row(*map(Text, map(visible, cells)))  # as Text: rich would read square brackets as styles
    return table


def _is_numeric(text: str) -> bool:
    return not text.strip("0123456789.,%/s ")
