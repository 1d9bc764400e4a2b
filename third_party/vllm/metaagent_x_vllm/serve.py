"""vLLM's HTTP server, bound to the life of the program that started it.

python -m metaagent_x_vllm.serve --model FOLDER ...       the arguments of `vllm serve`
"""

from __future__ import annotations

if __name__ == "__main__":
    # Not the `vllm` command: the build for CPUs looks for itself under a name that it was not installed by.
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
