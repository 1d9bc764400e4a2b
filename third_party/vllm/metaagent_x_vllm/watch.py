"""No server outlives the program that started it, however that program ends."""

from __future__ import annotations

import os
import select
import signal
import threading

PARENT = "METAAGENT_X_PARENT"  # pid of the program; set by it


def die_with_parent() -> None:
    """Kills this process group as soon as the process named in the environment is gone. Nothing if none is named.

    Called in every process of a server, so that none of them depends on another one to be told.
    """
    pid = os.environ.get(PARENT)
    if not pid:
        return
    try:
        handle = os.pidfd_open(int(pid))
    except ProcessLookupError:
        os.killpg(0, signal.SIGKILL)
        return

    def wait() -> None:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="die-with-parent", daemon=True).start()
