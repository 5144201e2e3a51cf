"""An answer as the events of the Responses API, numbered in the order in which they are sent.

The output is a list of items: reasoning, a message of parts, calls of functions. Each is added,
filled and done; then the response itself is, with all of them in it. The same writer makes the
whole response of a caller who wants no stream.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.responses.answer import Envelope
from orchestrator.gateway.tool_turns import ToolCall, ToolTurns
from orchestrator.runners.remote.translation import list_in, object_in

_encode = msgspec.json.Encoder().encode
Object = dict[str, object]


class ResponseWriter:
    """Writes one answer.

    Args:
        envelope: The response's other members.
        suffix: Ends the ids of its items.
    """

    __slots__ = (
        "_call",
        "_call_place",
        "_envelope",
        "_item",
        "_kept",
        "_logprobs",
        "_number",
        "_output",
        "_part",
        "_parts",
        "_pieces",
        "_place",
        "_suffix",
        "_tools",
    )

    def __init__(self, envelope: Envelope, *, suffix: str) -> None:
        self._envelope = envelope
        self._suffix = suffix
        self._number = -1
        self._parts: list[bytes] = []
        self._output: list[Object] = []
        self._item: Object | None = None
        """The message or reasoning that is open, if one is."""
        self._place = 0
        self._part: Object | None = None
        """Its open part."""
        self._pieces: list[bytes] = []
        """The texts of that part as JSON without the quotes, as its ends tell all of it again."""
        self._logprobs: list[bytes] = []
        """Its log-probabilities as JSON without the brackets."""
        self._tools = ToolTurns()
        self._call: Object = {}
        self._call_place = 0
        self._kept: Object = {}
        """Members that the API has no place for, told at the end."""

    def write(self, chunks: Sequence[TokenChunk]) -> bytes:
        """All chunks, as one piece of the stream."""
        self._start()
        for chunk in chunks:
            logprobs: list[object] = []
            if chunk.fields is not None:
                logprobs = list_in(object_in(chunk.fields.get("logprobs")).get("content"))
                self._write_fields(chunk.fields)
            if chunk.text or logprobs:
                self._write_text("output_text", chunk.text, logprobs)
        return self._take()

    def finish(self, finished: Finished) -> bytes:
        """The end of an answer that is complete."""
        self._start()
        response = self.complete(finished)
        self._tell(f"response.{response['status']}", response=response)
        return self._take()

    def complete(self, finished: Finished) -> Object:
        """Ends all items and returns the response."""
        self._close()
        self._write_tools(self._tools.flush())
        return self._kept | self._envelope.finished(finished, self._output)

    def fail(self, error: OrchestratorError) -> bytes:
        """The end of an answer that broke off: one event, and nothing after it."""
        self._start()
        self._tell("response.failed", response=self._envelope.failed(error, self._output))
        return self._take()

    def _start(self) -> None:
        if self._number < 0:
            self._tell("response.created", response=self._envelope.begun())
            self._tell("response.in_progress", response=self._envelope.begun())

    def _write_fields(self, fields: Mapping[str, object]) -> None:
        for name, value in fields.items():
            match name:
                case "tool_calls":
                    self._write_tools(self._tools.take(list_in(value)))
                case "thinking_blocks":
                    self._sign(list_in(value))
                case "reasoning_content" if isinstance(value, str):
                    self._reason(value)
                case "refusal" if isinstance(value, str):
                    self._write_text("refusal", value, [])
                case "annotations":
                    self._annotate(list_in(value))
                case "logprobs":
                    pass  # told with the text
                case _:
                    self._kept[name] = value

    def _write_text(self, kind: str, text: str, logprobs: list[object]) -> None:
        item = self._message()
        if self._part is None or self._part["type"] != kind:
            self._close_part()
            self._open_part(kind, item)
        said = _encode(text)
        self._pieces.append(said[1:-1])
        at = f'"item_id":"{item["id"]}","output_index":{self._place},"content_index":'
        place = len(list_in(item["content"])) - 1
        self._number += 1
        told = b""
        if kind == "output_text":
            likely = _encode(logprobs)
            told = b',"logprobs":' + likely
            if logprobs:
                self._logprobs.append(likely[1:-1])
        self._parts.append(
            b'event: response.%s.delta\ndata: {"type":"response.%s.delta",%s%d,"delta":%s%s,'
            b'"sequence_number":%d}\n\n'
            % (kind.encode(), kind.encode(), at.encode(), place, said, told, self._number)
        )

    def _message(self) -> Object:
        if self._item is None or self._item["type"] != "message":
            self._open({"type": "message", "role": "assistant", "content": list[object]()}, "msg")
        return self._item or {}

    def _open_part(self, kind: str, item: Object) -> None:
        text = kind == "output_text"
        part: Object = {"type": kind, "text" if text else "refusal": ""}
        if text:
            part |= {"annotations": list[object](), "logprobs": list[object]()}
        content = list_in(item["content"])
        content.append(part)
        self._part, self._pieces, self._logprobs = part, [], []
        self._tell_of_part("response.content_part.added")

    def _close_part(self) -> None:
        part, self._part = self._part, None
        if part is None or self._item is None:
            return
        text, kind = msgspec.Raw(b'"%s"' % b"".join(self._pieces)), str(part["type"])
        member = "refusal" if kind == "refusal" else "text"
        part[member] = text
        if kind == "output_text":
            part["logprobs"] = msgspec.Raw(b"[%s]" % b",".join(self._logprobs))
        self._pieces, self._logprobs = [], []
        self._part = part
        if kind == "summary_text":
            where = {"item_id": self._item["id"], "output_index": self._place, "summary_index": 0}
            self._tell("response.reasoning_summary_text.done", **where, text=text)
            self._tell("response.reasoning_summary_part.done", **where, part=part)
        else:
            extra = {"logprobs": part["logprobs"]} if kind == "output_text" else {}
            where = {
                "item_id": self._item["id"],
                "output_index": self._place,
                "content_index": len(list_in(self._item["content"])) - 1,
            }
            self._tell(f"response.{kind}.done", **where, **{member: text}, **extra)
            self._tell_of_part("response.content_part.done")
        self._part = None

    def _tell_of_part(self, kind: str) -> None:
        item = self._item or {}
        self._tell(
            kind,
            item_id=item["id"],
            output_index=self._place,
            content_index=len(list_in(item["content"])) - 1,
            part=self._part,
        )

    def _annotate(self, annotations: list[object]) -> None:
        if self._part is None or self._part["type"] != "output_text":
            self._write_text("output_text", "", [])
        if self._part is None or self._item is None:
            return
        known = list_in(self._part["annotations"])
        for given in annotations:
            told = object_in(given)
            kind = str(told.get("type", "annotation"))
            # a chat completion has what an annotation says under the annotation's own type
            annotation = {**told, **object_in(told.get(kind))}
            annotation.pop(kind, None)
            known.append(annotation)
            self._tell(
                "response.output_text.annotation.added",
                item_id=self._item["id"],
                output_index=self._place,
                content_index=len(list_in(self._item["content"])) - 1,
                annotation_index=len(known) - 1,
                annotation=annotation,
            )

    def _reason(self, text: str) -> None:
        item = self._reasoning()
        if self._part is None:
            self._part, self._pieces = {"type": "summary_text", "text": ""}, []
            list_in(item["summary"]).append(self._part)
            self._tell(
                "response.reasoning_summary_part.added",
                item_id=item["id"],
                output_index=self._place,
                summary_index=0,
                part=self._part,
            )
        said = _encode(text)
        self._pieces.append(said[1:-1])
        self._tell(
            "response.reasoning_summary_text.delta",
            item_id=item["id"],
            output_index=self._place,
            summary_index=0,
            delta=msgspec.Raw(said),
        )

    def _sign(self, blocks: list[object]) -> None:
        """Keeps signed thinking where the API keeps what only its maker can read."""
        item = self._reasoning()
        item["encrypted_content"] = _encode(blocks).decode()
        self._close()

    def _reasoning(self) -> Object:
        if self._item is None or self._item["type"] != "reasoning":
            self._open({"type": "reasoning", "summary": list[object]()}, "rs")
        return self._item or {}

    def _open(self, members: Object, prefix: str) -> None:
        self._close()
        self._place = len(self._output)
        item_id = f"{prefix}_{self._suffix}_{self._place}"
        self._item = {"id": item_id, "status": "in_progress", **members}
        self._output.append(self._item)
        self._tell("response.output_item.added", output_index=self._place, item=self._item)

    def _close(self) -> None:
        if self._item is None:
            return
        self._close_part()
        self._item["status"] = "completed"
        self._tell("response.output_item.done", output_index=self._place, item=self._item)
        self._item = None

    def _write_tools(self, steps: Iterable[tuple[str, ToolCall]]) -> None:
        for step, call in steps:
            if step == "begin":
                self._close()
                self._call_place = len(self._output)
                item_id = f"fc_{self._suffix}_{self._call_place}"
                self._call = {
                    "id": item_id,
                    "type": "function_call",
                    "status": "in_progress",
                    "call_id": call.call_id or item_id,
                    "name": call.name,
                    "arguments": "",
                }
                self._output.append(self._call)
                place = self._call_place
                self._tell("response.output_item.added", output_index=place, item=self._call)
            elif step == "go on":
                self._tell_of_call("delta", delta=call.untold())
            else:
                arguments = "".join(call.pieces)
                self._call |= {"status": "completed", "arguments": arguments}
                self._tell_of_call("done", name=call.name, arguments=arguments)
                place = self._call_place
                self._tell("response.output_item.done", output_index=place, item=self._call)

    def _tell_of_call(self, what: str, **members: object) -> None:
        if members.get("delta") != "":
            self._tell(
                f"response.function_call_arguments.{what}",
                item_id=self._call["id"],
                output_index=self._call_place,
                **members,
            )

    def _tell(self, kind: str, **members: object) -> None:
        self._number += 1
        told = _encode({"type": kind, "sequence_number": self._number, **members})
        self._parts.append(b"event: %s\ndata: %s\n\n" % (kind.encode(), told))

    def _take(self) -> bytes:
        piece = b"".join(self._parts)
        self._parts.clear()
        return piece
