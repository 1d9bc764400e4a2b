"""metaagent_x: one policy that designs multi-agent systems and plays every agent in them, trained end to end."""
