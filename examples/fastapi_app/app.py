"""Enqueue from a request, ask for the result in another."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from jobq import default_client, job
from jobq.client.aio import close_async
from jobq.errors import JobFailedError, ResultNotStoredError, ResultTimeoutError


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Close the connections to the server when the program ends."""
    yield
    client = default_client()
    close_async(client)
    client.close()


app = FastAPI(lifespan=lifespan)


class Numbers(BaseModel):
    """What a report is about."""

    numbers: list[float]


# No numbers have no mean; trying again won't change that.
@job(queue="reports", name="report", result_ttl="1h", dead_on=[statistics.StatisticsError])
def report(numbers: list[float]) -> dict[str, float]:
    """Slow work, outside the request."""
    return {"mean": statistics.fmean(numbers), "median": statistics.median(numbers)}


@app.post("/reports", status_code=202)
async def create(body: Numbers) -> dict[str, str]:
    """Accept the work; where to ask for it."""
    receipt = await report.aenqueue(body.numbers)
    return {"mid": receipt.mid, "href": f"/reports/{receipt.mid}"}


@app.get("/reports/{mid}")
async def show(mid: str, wait: float = 0) -> dict[str, Any]:
    """The result, or the status when there is none within `wait` seconds."""
    receipt = report.receipt(mid)
    try:
        return {"status": "done", "result": await receipt.aresult(timeout=min(wait, 30))}
    except ResultTimeoutError:
        return {"status": (await receipt.astatus()).word}
    except ResultNotStoredError as gone:
        raise HTTPException(404, f"there is no report {mid}, or no longer") from gone
    except JobFailedError as failed:
        raise HTTPException(500, str(failed)) from failed
