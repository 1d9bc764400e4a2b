"""From tasks to rollout trees: engines, chat, seeds, traces. Importing this package imports no JAX."""
