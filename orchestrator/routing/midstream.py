"""Who may go on with an answer that broke off after its caller had read of it.

A runner of the same model goes on exactly. With `continue` a deployment that can be prefilled goes
on with the text; what isn't text alone has no such continuation: half a tool call, a JSON object
whose grammar the next model doesn't know, tokens that were to have log-probabilities, and several
answers side by side.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from orchestrator.request import PriorityRequest
from orchestrator.resume import Seam
from orchestrator.routing.deployment import Deployment
from orchestrator.routing.route import Midstream

NOT_TEXT = (
    "tools",
    "functions",
    "logprobs",
    "top_logprobs",
    "audio",
    "prediction",
    "structured_outputs",
)
"""Members of a request with which its answer isn't text alone."""


def seam_at(midstream: Midstream, deployment: Deployment, request: PriorityRequest) -> Seam:
    """How a deployment may go on with its own answer to this request, if that breaks off."""
    if midstream == "error":
        return Seam.NONE
    if deployment.resumes is not None:
        return Seam.EXACT
    if midstream == "continue" and deployment.prefill and is_text(request):
        return Seam.PREFILL
    return Seam.NONE


def successors(
    midstream: Midstream,
    request: PriorityRequest,
    broken: Deployment,
    ahead: Sequence[Deployment],
) -> dict[Deployment, Seam]:
    """Who of those that were not tried yet may go on with an answer that broke off, and how.

    Args:
        midstream: The route's policy.
        request: Whose answer it is.
        broken: Where it broke off.
        ahead: The deployments, the best one first.
    """
    found: dict[Deployment, Seam] = {}
    if midstream == "error":
        return found
    # a text that another model went on with has no exact continuation any more
    if request.resume is None or request.resume.seam is Seam.EXACT:
        twins = [one for one in ahead if one.resumes is not None and one.resumes == broken.resumes]
        found.update(dict.fromkeys(twins, Seam.EXACT))
    kept = request.channel.kept
    plain = kept is not None and all(chunk.fields is None for chunk in kept)
    if midstream == "continue" and plain and is_text(request):
        found.update({one: Seam.PREFILL for one in ahead if one.prefill and one not in found})
    return found


def may_break_off_well(
    midstream: Midstream, seam: Seam, ahead: Sequence[Deployment], request: PriorityRequest
) -> bool:
    """Whether what is sent must be kept, for somebody could go on after it."""
    if request.channel.held or midstream == "error":
        return False
    return seam is not Seam.NONE or (
        midstream == "continue" and any(deployment.prefill for deployment in ahead)
    )


def is_text(request: PriorityRequest) -> bool:
    """Whether the answer will be one text and nothing else."""
    extra = request.extra
    return (
        request.sampling.n == 1
        and not any(extra.get(name) for name in NOT_TEXT)
        and _is_free(extra.get("response_format"))
    )


def _is_free(response_format: object) -> bool:
    if not isinstance(response_format, Mapping):
        return response_format is None
    return cast("Mapping[str, object]", response_format).get("type") == "text"
