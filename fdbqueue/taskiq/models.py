"""Models of Taskiq as bytes, by the serializer that the program has chosen."""

from typing import Any

from pydantic import BaseModel
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.serializers import PickleSerializer


def dumped(model: BaseModel, serializer: TaskiqSerializer) -> bytes:
    """A model as bytes. All serializers but pickle get values that JSON has."""
    mode: Any = "python" if isinstance(serializer, PickleSerializer) else "json"
    return serializer.dumpb(model.model_dump(mode=mode))
