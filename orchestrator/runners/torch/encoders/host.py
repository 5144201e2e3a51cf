"""The host of a model that reads texts, `python -m orchestrator.runners.torch.encoders.host`.

One thread hears commands and makes tokens of texts, so that none of that holds the model up;
another, the first, runs the model and tells the results. Arguments and life are those of the chat
model's host, see `runners.torch.host`.
"""

import os
import sys
import threading
import traceback
from importlib import import_module
from typing import TYPE_CHECKING

from orchestrator.runners.torch.encoders.pending import Pending
from orchestrator.runners.torch.host import Link, PartedError, entered, first_commands, told
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.runners.torch.wire import (
    Cancel,
    Command,
    Encode,
    Loading,
    Shutdown,
    Step,
)

if TYPE_CHECKING:
    from orchestrator.runners.torch.encoders.model import Encoder  # torch comes with it


def imports() -> None:
    """Imports what a model that reads needs, torch and transformers among it."""
    for name in ("engine", "loading", "words"):
        import_module(f"orchestrator.runners.torch.encoders.{name}")


def start(link: Link, settings: TorchSettings) -> "Encoder":
    """Loads the model, telling each stage.

    Raises:
        SystemExit: It couldn't be loaded; the parent has been told.
    """
    if settings.encoder is None:
        raise SystemExit("the command to load doesn't say what the model is for")
    with told(link, settings):
        from orchestrator.runners.torch.encoders.loading import (  # noqa: PLC0415 - torch comes with it
            load,
        )

        return load(settings, settings.encoder, lambda stage: link.send(Loading(stage)))


class Ear:
    """Hears commands, on a thread of its own.

    Args:
        link: Where they come from.
        encoder: Makes tokens of texts.
        pending: Where they go.
    """

    def __init__(self, link: Link, encoder: "Encoder", pending: Pending) -> None:
        self._link = link
        self._encoder = encoder
        self._pending = pending

    def listen(self) -> None:
        """Hears commands until the parent lets go, then ends the process as it wants."""
        try:
            while True:
                for command in self._link.receive(wait=True):
                    if isinstance(command, Shutdown):
                        self._pending.end()
                        return
                    self._take(command)
        except PartedError:
            # the model's thread may be in a pass that never returns, and nobody waits for it
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a host that hears nothing must not live on
            traceback.print_exception(error)
            sys.stderr.flush()
            os._exit(1)

    def _take(self, command: Command) -> None:
        from orchestrator.runners.torch.encoders.words import (  # noqa: PLC0415 - torch comes with it
            RefusedError,
            read,
        )

        match command:
            case Encode():
                try:
                    self._pending.add(read(self._encoder, command))
                except RefusedError as error:
                    self._pending.say(error.refused)
            case Cancel(stream):
                self._pending.drop(stream)
            case _:
                raise SystemExit(f"a host that reads texts was told {type(command).__name__}")


def serve(link: Link) -> None:
    """Loads what the first command says, then reads texts until told to end.

    Raises:
        PartedError: The parent is gone.
        SystemExit: The model couldn't be loaded, or the parent doesn't keep to the protocol.
    """
    first, early = first_commands(link, imports)
    if early:
        raise SystemExit("the next command must come later")
    encoder = start(link, first.settings)
    from orchestrator.runners.torch.encoders.engine import EncoderEngine  # noqa: PLC0415 - as above

    pending = Pending()
    engine = EncoderEngine(encoder, pending, lambda events: link.send(Step(events)))
    link.send(Loading("warming up"))
    engine.warm_up()
    link.send(encoder.facts)
    threading.Thread(target=Ear(link, encoder, pending).listen, name="ear", daemon=True).start()
    engine.serve()


def main() -> None:
    """Runs the host until its parent lets go of it."""
    serve(Link(entered()))


if __name__ == "__main__":
    main()
