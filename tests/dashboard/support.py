"""A browser without a screen: it keeps its cookies, and sends the forms of the pages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

from starlette.testclient import TestClient

from fdbqueue import Database
from fdbqueue.operate.dashboard import create_app
from fdbqueue.operate.dashboard.guard import COOKIE, Access
from fdbqueue.operate.dashboard.views import segment

TOKEN = "a token of enough letters"


class Browser:
    """`path` of a queue or a task; `post` sends a form with the text that its page has."""

    def __init__(self, client: TestClient, access: Access) -> None:
        self.client = client
        self.access = access

    def get(self, path: str, status: int = 200, **headers: str) -> str:
        answer = self.client.get(path, headers=headers)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return str(answer.text)

    def said(self, path: str, status: int = 200) -> str:
        """The text of the page between its tags."""
        return shown(self.get(path, status))

    def csrf(self) -> str:
        """The text that a form of this browser has to send."""
        return self.access.csrf(self.client.cookies.get(COOKIE, ""))

    def post(self, path: str, status: int = 303, **fields: Any) -> Any:
        given = {"csrf": self.csrf(), **fields}
        answer = self.client.post(path, data=given, follow_redirects=False)
        assert answer.status_code == status, (path, answer.status_code, shown(answer.text))
        return answer

    def act(self, path: str, **fields: Any) -> str:
        """Do an action with its confirmation. Return the sentence that the next page shows."""
        asked = self.post(path, 200, **fields)
        assert 'name="sure" value="yes"' in asked.text
        after = self.get(self.post(path, sure="yes", **fields).headers["location"])
        found = re.search('<p[^>]*role="status">(.*?)</p>', after)
        return "" if found is None else shown(found[1])


@contextmanager
def browsing(database: Database, **options: Any) -> Iterator[Browser]:
    """A browser of a dashboard that is being served."""
    app = create_app(database, **options)
    access = app.user_middleware[0].kwargs["access"]
    with TestClient(app, base_url="http://localhost") as client:
        yield Browser(client, access)


def shown(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


def path_of(queue: str, *rest: str) -> str:
    return "/".join(("/queues", segment(queue), *rest))
