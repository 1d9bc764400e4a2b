"""From a teacher's attempts at tasks to supervised examples of both roles."""
