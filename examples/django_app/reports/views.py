"""Enqueue a job from a view, show the job's state and progress, and cancel the job."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from jobq import State
from jobq.errors import ConfigError
from reports.tasks import report


@require_GET
def page(request: HttpRequest) -> HttpResponse:
    """Show a form, a progress bar and a cancel button."""
    return render(request, "reports/page.html")


@require_POST
def create(request: HttpRequest) -> JsonResponse:
    """Enqueue a report, and return its URL."""
    try:
        body = json.loads(request.body)
        numbers = [float(number) for number in body["numbers"]]
        seconds = float(body.get("seconds", 0))
    except (ValueError, TypeError, KeyError, AttributeError):
        return JsonResponse({"error": 'write {"numbers": [3, 1, 2]}'}, status=400)
    receipt = report.enqueue(numbers, seconds)
    return JsonResponse({"mid": receipt.mid, "href": f"/reports/{receipt.mid}"}, status=202)


@require_GET
def show(request: HttpRequest, mid: str) -> JsonResponse:
    """Return the report's state, with the result if the report is done."""
    try:
        receipt = report.receipt(mid)
        state = receipt.state()
    except ConfigError as error:
        return JsonResponse({"error": str(error)}, status=404)
    if state.word == "unknown":
        return JsonResponse({"error": f"there is no report {mid}, or no longer"}, status=404)
    reply = shown(state)
    if state.word == "done":
        reply["result"] = receipt.result(timeout=0)
    return JsonResponse(reply)


@require_POST
def cancel(request: HttpRequest, mid: str) -> JsonResponse:
    """Cancel the report, and return its state."""
    try:
        receipt = report.receipt(mid)
        receipt.cancel()
    except ConfigError as error:
        return JsonResponse({"error": str(error)}, status=404)
    return JsonResponse(shown(receipt.state()))


def shown(state: State) -> dict[str, Any]:
    """Return the fields of a state that the page shows."""
    progress = state.progress
    return {
        "state": state.word,
        "fraction": progress.fraction if progress else None,
        "note": progress.note if progress else "",
        "error": state.error,
        "ended": state.ended,
    }
