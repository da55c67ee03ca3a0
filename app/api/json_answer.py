"""Answers in JSON, made of msgspec's structs."""

import msgspec
from starlette.responses import JSONResponse


class JsonAnswer(JSONResponse):
    def render(self, content: object) -> bytes:
        return msgspec.json.encode(content)
