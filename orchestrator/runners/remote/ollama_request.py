"""A chat completion's request in the words of Ollama's own chat API.

Sampling goes into `options`, with those options of Ollama's that callers put beside the rest; all
other fields that aren't OpenAI's go through untouched (`think`, `keep_alive`). Content parts become
one text and a list of images, which have to come as data, for Ollama fetches nothing.
"""

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message, PriorityRequest
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.settings import RemoteSettings
from orchestrator.runners.remote.strays import MESSAGE, Strays, unmarked
from orchestrator.runners.remote.translation import (
    Fields,
    Function,
    Object,
    ToolCall,
    calls_of,
    choice_in,
    data_of,
    format_in,
    object_in,
    parts_of,
    refuse_part,
    tools_in,
    url_in,
)

Members = dict[str, object]

OPTIONS = (
    "min_p",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "num_ctx",
    "num_gpu",
    "num_keep",
    "num_thread",
    "repeat_last_n",
    "repeat_penalty",
    "tfs_z",
    "top_k",
    "typical_p",
)
"""Options that callers put beside OpenAI's fields."""


def payload(settings: RemoteSettings, request: PriorityRequest) -> Steps[Members]:
    """Returns the body to send; what the caller didn't set is left to Ollama.

    Raises:
        InvalidRequestError: Ollama has no place for a field, or can't read a message.
    """
    fields = Fields(settings, request)
    fields.refuse_foreign()
    fields.refuse_several()
    if fields.take("service_tier") not in (None, "auto", "default"):
        fields.refuse("service_tier")
    strays = Strays(settings, messages=False, parts=True)
    strays.in_fields(fields.rest)
    body: Members = {}
    if tools := _tools(fields):
        body["tools"] = tools
    if (form := format_in(fields)) is not None:
        body["format"] = "json" if form.schema is None else form.schema
    if (effort := fields.take("reasoning_effort")) is not None:
        body["think"] = {"none": False, "minimal": "low", "xhigh": "high"}.get(str(effort), effort)
    options = _options(fields, request)
    body.update(fields.rest)
    if options:
        body["options"] = options
    names: dict[str, str] = {}
    messages: list[Members] = []
    for index, message in enumerate(request.messages):
        place = f"messages[{index}]"
        strays.in_message(message, place)
        messages.append(_message(fields, settings.provider, message, place, names))
        yield
    body["messages"] = messages
    body["model"] = settings.model
    body["stream"] = True
    return body


def _options(fields: Fields, request: PriorityRequest) -> Members:
    sampling = request.sampling
    options: Members = {**object_in(fields.take("options"))}
    options.update({name: fields.take(name) for name in OPTIONS if name in fields.rest})
    chosen = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "num_predict": sampling.max_tokens,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    options.update((name, value) for name, value in chosen.items() if value is not None)
    return options


def _tools(fields: Fields) -> list[Object]:
    tools = tools_in(fields)
    choice = choice_in(fields)
    if fields.take("parallel_tool_calls") is False and tools:
        fields.refuse("parallel_tool_calls", "can't be kept from calling several tools at once")
    if choice is not None and choice.mode == "none":
        return []
    if choice is not None and (choice.mode == "required" or choice.names):
        fields.refuse("tool_choice", "can't be made to call a tool; tool_choice is auto or none")
    return [_tool(tool) if isinstance(tool, Function) else tool for tool in tools]


def _tool(function: Function) -> Object:
    written: Members = {
        **unmarked(function.fields),
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": written}


def _message(
    fields: Fields, provider: str, message: Message, where: str, names: dict[str, str]
) -> Members:
    """Returns one message; `names` collects the functions' names by the ids of their calls.

    Raises:
        InvalidRequestError: There is something in it that Ollama can't read.
    """
    role = "system" if message.role == "developer" else message.role
    if role == "function":
        raise InvalidRequestError(
            f"{provider} takes the results of functions as messages of role tool",
            param=f"{where}.role",
        )
    texts: list[str] = []
    images: list[str] = []
    for place, part in enumerate(parts_of(message)):
        if part.get("type") == "text":
            texts.append(str(part.get("text")))
        else:
            images.append(_image(part, f"{where}.content[{place}]", provider))
    own = unmarked(message.fields, MESSAGE)
    written: Members = {**own, "role": role, "content": "".join(texts)}
    if images:
        written["images"] = images
    if thought := message.fields.get("reasoning_content"):
        written["thinking"] = thought
    if role == "tool":
        call_id = str(message.fields.get("tool_call_id") or "")
        written["tool_call_id"] = call_id
        written["tool_name"] = message.fields.get("name") or names.get(call_id, "")
    elif message.fields.get("name"):
        fields.refuse(f"{where}.name", "takes no name in a message")
    if calls := calls_of(message, where):
        names.update((call.call_id, call.name) for call in calls)
        written["tool_calls"] = [
            {**unmarked(call.own), "id": call.call_id, "function": _called(call)} for call in calls
        ]
    return written


def _called(call: ToolCall) -> Members:
    return {"name": call.name, "arguments": call.arguments}


def _image(part: Object, where: str, provider: str) -> str:
    if part.get("type") != "image_url":
        refusal = refuse_part(part, where, provider)
        raise refusal
    data = data_of(url_in(part, "image_url", where))
    if data is None:
        raise InvalidRequestError(
            f"{provider} fetches no images: {where} must be a data URL in base64", param=where
        )
    return data.base64
