"""The network: Qwen3, its attention kernels, log-probs, decoding and sharding."""
