"""The systems that are compared, the trained one among them: one file each, on the same tasks, engines and grader.

A method is one small object with `solve(task) -> Execution` (`method.py`). A further one is a file with a function
`make(means, options)` and a line in `registry.METHODS`.
"""
