"""A web service with asyncio: an order and its e-mail in one transaction, and a websocket that waits for it.

    uvicorn examples.orders:app --port 8000            # the service
    fdbqueue work emails examples.orders:send          # workers, here or on any machine

Both use the database of $FDBQUEUE_URL, or else ./fdbqueue-data. A delivered e-mail is a file in ./mail.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

import fdbqueue
from fdbqueue import Done, Transaction, aio

ORDERS = fdbqueue.Subspace(("service", "orders"))
MAIL = Path("mail")
NOT_FOUND = 4404  # a close code of our own


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Open the database on the loop of the server."""
    async with aio.open() as db:
        app.state.db = db
        app.state.emails = await aio.TaskQueue.create(db, "emails", "fifottl", ttr=30, if_not_exists=True)
        yield


async def put_order(request: Request) -> Response:
    """PUT /orders/ID. After a lost answer the client sends it again, and nothing happens twice."""
    state, order = request.app.state, request.path_params["order"]
    try:
        customer = str(json.loads(await request.body())["customer"])
    except (ValueError, KeyError, TypeError):
        return JSONResponse({"error": 'the body is {"customer": "NAME@HOST"}'}, 400)
    placed = await place(state.db, state.emails, order, customer)
    return JSONResponse({"order": order}, 201 if placed else 200)


async def follow_order(socket: WebSocket) -> None:
    """A websocket at /orders/ID: it tells how the order stands, at each change, until the e-mail is sent."""
    await socket.accept()
    following = asyncio.create_task(tell_until_sent(socket, socket.path_params["order"]))
    try:
        await socket.receive()  # the client says nothing: this returns when it has gone, or was told all
    except WebSocketDisconnect:
        pass
    finally:
        following.cancel()  # a wait of fdbqueue.aio ends at once


async def tell_until_sent(socket: WebSocket, order: str) -> None:
    while True:
        found, change = await seen(socket.app.state.db, order)
        if found is None:
            await socket.close(NOT_FOUND, "no such order")
            return
        await socket.send_json(found)
        if found["emailed"]:
            await socket.close()
            return
        await change


app = Starlette(
    routes=[
        Route("/orders/{order}", put_order, methods=["PUT"]),
        WebSocketRoute("/orders/{order}", follow_order),
    ],
    lifespan=lifespan,
)


@aio.transactional
async def place(tr: aio.Transaction, emails: aio.TaskQueue, order: str, customer: str) -> bool:
    """Store an order and put its e-mail: both, or neither. False if the order is there."""
    if (await tr.get(ORDERS[order].key())).present():
        return False
    tr[ORDERS[order].key()] = customer.encode()
    await emails.put(tr, {"order": order, "to": customer})
    return True


@aio.transactional
async def seen(tr: aio.Transaction, order: str) -> tuple[dict[str, Any] | None, aio.Future[None]]:
    """The order, and a future that is ready when it has changed: both of one moment."""
    to, sent = ORDERS[order].key(), ORDERS[order]["emailed"].key()
    reads, change = (tr.get(to), tr.get(sent)), tr.watch(sent)  # all three are under way
    customer, emailed = [await read for read in reads]
    if not customer.present():
        return None, change
    return {"order": order, "customer": customer.value.decode(), "emailed": emailed.present()}, change


async def send(task: aio.HeldTask) -> None:
    """The handler: deliver one e-mail, then note it in the transaction that acks the task."""
    order, customer = task.data["order"], task.data["to"]
    await asyncio.to_thread(deliver, order, customer)

    def note(tr: Transaction) -> None:
        tr[ORDERS[order]["emailed"]] = b"yes"

    raise Done(note)


def deliver(order: str, customer: str) -> None:
    """Deliver the e-mail of an order. A second delivery replaces the first, as both have one name."""
    MAIL.mkdir(exist_ok=True)
    unfinished = MAIL / f".{order}.{os.getpid()}"
    unfinished.write_text(f"To: {customer}\nSubject: Order {order}\n\nWe have your order {order}.\n")
    unfinished.replace(MAIL / f"{order}.eml")
