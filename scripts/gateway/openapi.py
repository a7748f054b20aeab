"""The public surface as an OpenAPI document: what /openapi.json answers, and what `make abuse` generates requests from.

Guarantees:
- It names every route of the trial protocol with its parameters, bodies and statuses.
- The create payload's schema is the very model that checks it. It holds no example and no value.
"""

from typing import Any

from gateway.payload import VERSION, CreatePayload

REFERENCE = "#/components/schemas/{model}"
ID = {"name": "request_id", "in": "path", "required": True, "schema": {"type": "string"}}
WAIT = {"name": "wait_s", "in": "query", "schema": {"type": "number", "minimum": 0, "maximum": 60, "default": 0}}


def answers(good: str, *errors: str) -> dict[str, Any]:
    """Responses of a route: its status of success, and the errors it may give."""
    shape = {"application/json": {"schema": {"$ref": REFERENCE.format(model="Error")}}}
    known = {status: {"description": "refused", "content": shape} for status in errors}
    return {"responses": {good: {"description": "done"}} | known}


def document(guarded: bool) -> dict[str, Any]:
    """The OpenAPI document; `guarded`: /v1 needs GATEWAY_TOKEN."""
    payload = CreatePayload.model_json_schema(ref_template=REFERENCE)
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object"}}}
    schemas = payload.pop("$defs") | {"CreatePayload": payload, "Error": error}
    body = {"application/json": {"schema": {"$ref": REFERENCE.format(model="CreatePayload")}}}
    create = {"requestBody": {"required": True, "content": body}}
    create |= answers("202", "400", "401", "408", "409", "413", "422", "429", "503")
    by_id = {"parameters": [ID]}
    paths = {
        "/v1/trials": {"post": create},
        "/v1/trials/{request_id}": {"get": {"parameters": [ID, WAIT]} | answers("200", "401", "404", "422", "503")},
        "/v1/trials/{request_id}/trajectory": {"get": by_id | answers("200", "401", "404", "503")},
        "/v1/trials/{request_id}/renew": {"post": by_id | answers("204", "401", "404", "503")},
        "/v1/trials/{request_id}/abort": {"post": by_id | answers("202", "401", "404", "503")},
        "/healthz": {"get": answers("200")},
        "/readyz": {"get": answers("200", "503")},
        "/metrics": {"get": answers("200")},
    }
    components = {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    info = {"title": "Gateway", "version": VERSION}
    security = {"security": [{"token": []}]} if guarded else {}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components} | security
