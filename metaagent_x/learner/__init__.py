"""From trees to a better policy: credit, packing, objective, update, checkpoints."""
