"""How a bug is planted: a class or function of the core is replaced while a run lasts.

Production code knows nothing of it.
"""

import importlib
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType

BUILDERS = ("orchestrator.wiring", "orchestrator.deployment")


@dataclass(frozen=True, slots=True)
class Patch:
    """What takes whose place while a mutant runs."""

    module: str
    name: str
    """A name in the module, or `Class.method`."""
    value: object


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    origin: str
    """Where such a bug was seen, or what invites it."""
    patches: tuple[Patch, ...]


@contextmanager
def planted(mutant: Mutant) -> Generator[None, None, None]:
    """Runs with the bug; everything is put back afterwards."""
    with put_in_place(mutant.patches):
        yield


@contextmanager
def put_in_place(patches: Iterable[Patch]) -> Generator[None, None, None]:
    """Runs with the replacements; everything is put back afterwards."""
    with ExitStack() as stack:
        for patch in patches:
            owner: object = importlib.import_module(patch.module)
            *path, name = patch.name.split(".")
            for step in path:
                owner = getattr(owner, step)
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, patch.value)
        yield


def instead_of(original: type, bug: type) -> tuple[Patch, ...]:
    """A class that a system or a deployment is built from is replaced by a subclass of it."""
    return tuple(
        Patch(builder, original.__name__, bug)
        for builder in BUILDERS
        if hasattr(importlib.import_module(builder), original.__name__)
    )


def grafted(bugs: Iterable[type]) -> tuple[Patch, ...]:
    """The methods of each class take the place of its base's own, for all that derive from it."""
    return tuple(
        Patch(base.__module__, f"{base.__name__}.{name}", method)
        for bug in bugs
        for base in bug.__bases__
        for name, method in vars(bug).items()
        if isinstance(method, FunctionType)
    )
