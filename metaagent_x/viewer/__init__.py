"""The trace viewer: a run folder as JSON answers, a server for this machine alone, and a front end without a build step."""
