"""Enqueue a job from a request, stream the job's state, and cancel the job."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

from jobq import State, current, default_client, job
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
    """Request body of a new report."""

    numbers: list[float]
    seconds: float = 0


# An empty list has no mean, so a retry would fail again.
@job(
    queue="reports",
    name="report",
    result_ttl="1h",
    remember="1h",
    dead_on=[statistics.StatisticsError],
)
async def report(numbers: list[float], seconds: float = 0) -> dict[str, float]:
    """Return the mean and the median, and report progress."""
    for page in range(1, 11):
        await asyncio.sleep(seconds / 10)
        current().progress(page, 10, note=f"page {page} of 10", data={"page": page})
    return {"mean": statistics.fmean(numbers), "median": statistics.median(numbers)}


@app.get("/", response_class=HTMLResponse)
def page() -> str:
    """Return a page with a form, a progress bar and a cancel button."""
    return (Path(__file__).parent / "page.html").read_text(encoding="utf-8")


@app.post("/reports", status_code=202)
async def create(body: Numbers) -> dict[str, str]:
    """Enqueue a report, and return its id and URL."""
    receipt = await report.aenqueue(body.numbers, body.seconds)
    return {"mid": receipt.mid, "href": f"/reports/{receipt.mid}"}


@app.get("/reports/{mid}")
async def show(mid: str, wait: float = 0) -> dict[str, Any]:
    """Return the report's state, and the result if it arrives within `wait` seconds."""
    receipt = report.receipt(mid)
    try:
        result = await receipt.aresult(timeout=min(wait, 30))
        return {**shown(await receipt.astate()), "result": result}
    except (ResultTimeoutError, ResultNotStoredError, JobFailedError):
        state = await receipt.astate()
    if state.word == "unknown":
        raise HTTPException(404, f"there is no report {mid}, or no longer")
    return shown(state)


@app.get("/reports/{mid}/events")
async def events(mid: str) -> StreamingResponse:
    """Stream the state and progress as server-sent events until the report ends."""

    async def changes() -> AsyncIterator[str]:
        async for state in report.receipt(mid).afollow():
            yield f"data: {json.dumps(shown(state))}\n\n"

    return StreamingResponse(changes(), media_type="text/event-stream")


@app.post("/reports/{mid}/cancel")
async def cancel(mid: str) -> dict[str, Any]:
    """Cancel the report, and return its new state."""
    receipt = report.receipt(mid)
    await receipt.acancel()
    return shown(await receipt.astate())


def shown(state: State) -> dict[str, Any]:
    """Return the fields of a state that the page shows."""
    progress = state.progress
    return {
        "state": state.word,
        "attempt": state.attempt,
        "fraction": progress.fraction if progress else None,
        "note": progress.note if progress else "",
        "error": state.error,
        "ended": state.ended,
    }
