"""What a vLLM worker imports in tests/rollout/test_real_vllm.py: our extension, of which one part can be left out."""

import metaagent_x_vllm
from metaagent_x_vllm import transfer

REPACK = transfer.repack_head


class Extension(metaagent_x_vllm.Extension):
    def leave_out_repacking(self, out):
        transfer.repack_head = (lambda *_: None) if out == "yes" else REPACK
