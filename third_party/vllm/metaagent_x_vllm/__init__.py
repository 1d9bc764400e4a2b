"""Runs inside vLLM's worker processes: receives weights from shared memory, and says what the server was started with.

A server loads it with `--worker-extension-cls metaagent_x_vllm.Extension` and
`--weight-transfer-config '{"backend": "metaagent_x"}'`. Needs torch, numpy and vLLM 0.32; knows nothing of the learner.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from metaagent_x_vllm.transfer import SharedMemoryEngine
from metaagent_x_vllm.watch import die_with_parent

BACKEND = "metaagent_x"

die_with_parent()  # every process of a server imports this module
# This is what registers the engine; a worker imports the module before it builds the model.
if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)


class Extension:
    """Mixed into vLLM's worker: its methods are callable through `/collective_rpc`."""

    def metaagent_x_info(self) -> dict[str, Any]:
        """What the learner compares with its own side before it sends anything."""
        config = self.vllm_config  # type: ignore[attr-defined]
        model = config.model_config
        return {
            "model": str(model.model),
            "vocab_size": int(model.get_vocab_size()),
            "max_model_len": int(model.max_model_len),
            "dtype": str(model.dtype).removeprefix("torch."),
            "logprobs_mode": str(model.logprobs_mode),
            "fingerprint": str((config.additional_config or {}).get("metaagent_x_fingerprint", "")),
            "device": str(self.device.type),  # type: ignore[attr-defined]
        }

    def metaagent_x_abandon(self) -> None:
        """Closes an update that nobody will end, so that another can begin. The weights are a mixture until then."""
        self._weight_update_active = False
        self.weight_transfer_engine.abandon()  # type: ignore[attr-defined]
