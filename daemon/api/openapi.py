"""The API's OpenAPI 3.1 document, made from the route table, the messages and the reports' records, so that it cannot
promise something else. Pure.

Limit: what a request may hold is described in full; an answer's records may get more fields within version 1.
"""

import dataclasses
import re
import typing
from typing import Any

from slurm_elastic.protocol import codec, messages
from slurm_elastic.protocol.answers.by_route import ANSWERS
from slurm_elastic.protocol.api.routes import MAX_JOB_ID, MAX_JOBS, ROUTES, Caller, Route

Schema = dict[str, Any]
"""A part of the document, in JSON's own values."""
_ERRORS = {
    "400": "Something in the request is not accepted; the sentence says what is.",
    "401": "The caller is not known.",
    "403": "The caller may not do that.",
    "404": "There is no such job, resize or address.",
    "409": "The job does not allow that: its size is not one that it accepts, or it has ended.",
    "408": "The body took too long.",
    "413": "The body is too long.",
    "429": "Too many requests; Retry-After says when to come again.",
    "500": "A fault of selasticd's own.",
    "503": "The database, MUNGE or Slurm does not answer; Retry-After says when to come again.",
}
_TEXT = {"type": "string", "maxLength": codec.MAX_TEXT, "description": "Printable characters only."}
_NARROWER: dict[tuple[Any, str], Schema] = {
    **{
        (kind, "version"): {"minimum": codec.OLDEST}
        for kind in (messages.Registration, messages.Reports, messages.Happening, messages.Rate, messages.Phase)
    },
    (messages.Happening, "what"): {"enum": list(messages.HAPPENINGS)},
    (messages.Rate, "of"): {"enum": list(messages.RATES)},
    (messages.Phase, "phase"): {"enum": [*messages.HAPPENINGS, messages.CHECKPOINTED]},
}
_SECURITY = {
    Caller.USER.value: {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "MUNGE CREDENTIAL. Its payload is 'selastic/1 METHOD TARGET SHA256-OF-BODY'.",
    },
    Caller.JOB.value: {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "Proof NAME.NUMBER.CODE, made with the registration's key (protocol/api/proofs.py).",
    },
}


def document() -> Schema:
    paths: Schema = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    kinds = [kind for route in ROUTES for kind in (route.message, ANSWERS.get(route)) if kind is not None]
    return {
        "openapi": "3.1.0",
        "info": {"title": "selasticd", "version": str(codec.VERSION), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {kind.__name__: schema(kind) for kind in _with_parts(kinds)} | {"Error": _error()},
            "securitySchemes": _SECURITY,
        },
    }


def schema(kind: Any) -> Schema:
    """The JSON schema of a message, or of an answer's record (always with every field)."""
    sent = kind.__module__ == messages.__name__
    fields = {item.name: item for item in dataclasses.fields(kind)}
    found: Schema = {"type": "object"}
    found["required"] = [name for name, (_, _, required) in codec.form(kind).items() if required or not sent]
    found["properties"] = {
        name: _value(hint, within if sent else None)
        | _NARROWER.get((kind, name), {})
        | ({"description": fields[name].metadata["help"]} if "help" in fields[name].metadata else {})
        for name, (hint, within, _) in codec.form(kind).items()
    }
    return found


def _value(hint: Any, within: codec.Within | None) -> Schema:
    """`within`: the bounds of what may be sent; None: of an answer, which has none."""
    if (inner := codec.or_none(hint)) is not None:
        value = _value(inner, within)
        return (
            {"anyOf": [value, {"type": "null"}]} if "type" not in value else value | {"type": [value["type"], "null"]}
        )
    if typing.get_origin(hint) is tuple:
        most = {"maxItems": codec.MAX_ITEMS} if within is not None else {}
        return {"type": "array", **most, "items": _value(typing.get_args(hint)[0], within)}
    if typing.get_origin(hint) is dict:
        return {"type": "object"}
    if hint in (int, float):
        bounds = {"minimum": hint(within.low), "maximum": hint(within.high)} if within is not None else {}
        return {"type": "integer" if hint is int else "number", **bounds}
    if hint is str:
        return dict(_TEXT) if within is not None else {"type": "string"}
    return {"type": "boolean"} if hint is bool else _ref(hint.__name__)


def _with_parts(kinds: list[Any]) -> list[Any]:
    """These classes and those that their fields are of, each once."""
    found: dict[Any, None] = {}
    left = list(kinds)
    while left:
        kind = left.pop(0)
        if kind not in found:
            found[kind] = None
            left += [part for hint, _, _ in codec.form(kind).values() for part in _classes(hint)]
    return list(found)


def _classes(hint: Any) -> list[Any]:
    if dataclasses.is_dataclass(hint):
        return [hint]
    return [kind for part in typing.get_args(hint) for kind in _classes(part)]


def _operation(route: Route) -> Schema:
    operation: Schema = {"summary": route.summary, "responses": _responses(route), "parameters": _parameters(route)}
    operation["security"] = _security(route.caller)
    if route.message is not None:
        body = {"application/json": {"schema": _ref(route.message.__name__)}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _security(caller: Caller) -> list[Schema]:
    """The credentials that will do; an empty one is none."""
    if caller is Caller.ANYONE_OR_USER:
        return [{Caller.USER.value: []}, {}]
    return [] if caller is Caller.ANYONE else [{caller.value: []}]


def _responses(route: Route) -> Schema:
    answer = ANSWERS.get(route)
    content: Schema = {"application/json": {"schema": _ref(answer.__name__) if answer else {"type": "object"}}}
    if not route.path.startswith("/v1/"):
        content = {"text/plain": {"schema": {"type": "string"}}}
    responses: Schema = {str(route.status): {"description": "Done.", "content": content}}
    if route.may_be_empty:
        responses["204"] = {"description": "Nothing new."}
    for status, words in _ERRORS.items():
        responses[status] = {"description": words, "content": {"application/json": {"schema": _ref("Error")}}}
    return responses


def _parameters(route: Route) -> list[Schema]:
    job = {"type": "integer", "minimum": route.first_job, "maximum": MAX_JOB_ID}
    path = [{"name": name, "in": "path", "required": True, "schema": job} for name in re.findall("{(.*?)}", route.path)]
    return path + [
        {"name": name, "in": "query", "required": False, "schema": _parameter(hint, within)}
        for name, (hint, within, _) in route.parameters().items()
    ]


def _parameter(hint: Any, within: codec.Within) -> Schema:
    kind = codec.or_none(hint) or hint
    if kind is str:
        return {"type": "string"}
    if typing.get_origin(kind) is tuple:
        return {"type": "string", "pattern": f"^[0-9]{{1,10}}(,[0-9]{{1,10}}){{0,{MAX_JOBS - 1}}}$"}
    return _value(kind, within)


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _error() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["error"],
        "properties": {"error": {"type": "string", "description": "One sentence, fit to be shown to a user."}},
    }
