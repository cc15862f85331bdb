"""The API's OpenAPI 3.1 document, made from the messages' own classes, so that it cannot promise something else.

Pure. The answers of the reports (status, acct, explain) are told as objects: their rows may grow within version 1.
"""

from __future__ import annotations

import typing
from typing import Any

from slurm_elastic.protocol import messages

_ERRORS = {
    "400": "Something in the request is not accepted; the sentence says what is.",
    "401": "The caller is not known.",
    "403": "The caller may not do that.",
    "404": "There is no such job, directive or address.",
    "409": "The job does not allow that: its size is not one that it accepts, or it has ended.",
    "408": "The body took too long.",
    "413": "The body is too long.",
    "429": "Too many requests; Retry-After says when to come again.",
    "500": "A fault of selasticd's own.",
    "503": "The database, MUNGE or Slurm does not answer; Retry-After says when to come again.",
}
_OBJECT: dict[str, Any] = {"type": "object"}
_SCALARS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    str: {"type": "string", "maxLength": messages.MAX_TEXT, "description": "Printable characters only."},
}
_PIN: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["gpus"],
    "properties": {
        "gpus": {
            "description": "null lets the job go.",
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": 1_000_000,
        }
    },
}


def document() -> dict[str, Any]:
    """The whole document, as JSON values."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "selasticd", "version": str(messages.VERSION), "license": {"name": "Apache-2.0"}},
        "paths": _paths(),
        "components": {
            "schemas": {kind.__name__: schema(kind) for kind in _KINDS} | {"Error": _error(), "Pin": _PIN},
            "securitySchemes": {
                "munge": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "MUNGE CREDENTIAL. Its payload is 'selastic/1 METHOD TARGET SHA256-OF-BODY'.",
                },
                "token": {"type": "http", "scheme": "bearer", "description": "The token that registration gave."},
            },
        },
    }


_NARROWER: dict[tuple[Any, str], dict[str, Any]] = {
    (messages.Registration, "version"): {"const": messages.VERSION},
    (messages.Phase, "phase"): {"enum": list(messages.PHASES)},
}
_KINDS = (
    messages.Piece,
    messages.Shape,
    messages.Registration,
    messages.Grant,
    messages.Report,
    messages.Reports,
    messages.Directive,
    messages.Phase,
)


def schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of one message."""
    form = messages.form(kind)
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, (_, _, required) in form.items() if required],
        "properties": {
            name: _value(hint, within) | _NARROWER.get((kind, name), {}) for name, (hint, within, _) in form.items()
        },
    }


def _value(kind: Any, within: messages.Within) -> dict[str, Any]:
    if typing.get_origin(kind) is tuple:
        return {"type": "array", "maxItems": messages.MAX_ITEMS, "items": _value(typing.get_args(kind)[0], within)}
    if kind in (int, float):
        name = "integer" if kind is int else "number"
        return {"type": name, "minimum": kind(within.low), "maximum": kind(within.high)}
    return dict(_SCALARS[kind]) if kind in _SCALARS else _ref(kind.__name__)


def _paths() -> dict[str, Any]:
    job = [_job(1)]
    time = {"type": "number", "minimum": 0, "maximum": messages.MAX_NUMBER}
    after = _parameter("after", "query", {"type": "integer", "minimum": 0, "maximum": int(messages.MAX_NUMBER)})
    wait = _parameter("wait", "query", {"type": "number", "minimum": 0, "maximum": 60})
    limit = _parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 10_000})
    window = [_parameter(name, "query", dict(time)) for name in ("start", "end")]
    window.append(_parameter("job", "query", {"type": "string", "pattern": "^[0-9]{1,10}(,[0-9]{1,10}){0,999}$"}))
    acct = [*window, _parameter("user", "query", {"type": "string"})]
    dry_run = _parameter("dry_run", "query", {"type": "integer", "enum": [0, 1]})
    told = {"200": _OBJECT}
    return {
        "/v1/health": {"get": _operation("Whether selasticd is there", told, "")},
        "/v1/openapi.json": {"get": _operation("This document", told, "")},
        "/metrics": {"get": _metrics()},
        "/v1/jobs": {"get": _operation("All jobs that have not ended", told, "munge")},
        "/v1/jobs/{job_id}": {"parameters": job, "get": _operation("One job", told, "munge")},
        "/v1/jobs/{job_id}/register": {
            "parameters": job,
            "post": _operation("Register a job's supervisor", {"200": _ref("Grant")}, "munge", body="Registration"),
        },
        "/v1/jobs/{job_id}/reports": {
            "parameters": job,
            "post": _operation("Throughput; on the disk when answered", {"202": _OBJECT}, "token", body="Reports"),
        },
        "/v1/jobs/{job_id}/phases": {
            "parameters": job,
            "post": _operation("How far a resize has come", told, "token", body="Phase"),
        },
        "/v1/jobs/{job_id}/directive": {
            "parameters": [*job, after, wait],
            "get": _operation("Wait for a directive", {"200": _ref("Directive"), "204": None}, "token"),
        },
        "/v1/jobs/{job_id}/pin": {
            "parameters": job,
            "post": _operation("Hold a job at a size", told, "munge", body="Pin"),
        },
        "/v1/jobs/{job_id}/explain": {"parameters": job, "get": _operation("Why it has what it has", told, "munge")},
        "/v1/jobs/{job_id}/events": {
            "parameters": [_job(0), limit],
            "get": _operation("What was done to the job; of 0: to the daemon, for admins", told, "munge"),
        },
        "/v1/acct": {"parameters": acct, "get": _operation("Every size that jobs have had", told, "munge")},
        "/v1/advice": {"parameters": window, "get": _operation("What advice would have brought", told, "munge")},
        "/v1/report": {"parameters": window, "get": _operation("How jobs have gone", told, "munge")},
        "/v1/plan": {"parameters": [dry_run], "get": _operation("The last plan, or one made now", told, "munge")},
    }


def _job(least: int) -> dict[str, Any]:
    return _parameter("job_id", "path", {"type": "integer", "minimum": least, "maximum": (1 << 32) - 1}, required=True)


def _metrics() -> dict[str, Any]:
    operation = _operation("Prometheus metrics", {"200": _OBJECT}, "")
    operation["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return operation


def _operation(summary: str, answers: dict[str, Any], security: str, body: str = "") -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, content in answers.items():
        responses[status] = {"description": "Done." if content is not None else "Nothing new."}
        if content is not None:
            responses[status]["content"] = {"application/json": {"schema": content}}
    for status, words in _ERRORS.items():
        responses[status] = {"description": words, "content": {"application/json": {"schema": _ref("Error")}}}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    operation["security"] = [{security: []}] if security else []
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return operation


def _parameter(name: str, where: str, kind: dict[str, Any], required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "schema": kind}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _error() -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["error"],
        "properties": {"error": {"type": "string", "description": "One sentence, fit to be shown to a user."}},
    }
