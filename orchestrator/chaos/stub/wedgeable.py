"""The real model host, which SIGUSR1 wedges; `python -m orchestrator.chaos.stub.wedgeable`.

A wedged main thread can't be brought about from outside: stopping the process stops all of it.
"""

import signal

from orchestrator.chaos.stub.host import wedge
from orchestrator.runners.torch.host import main

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, wedge)
    main()
