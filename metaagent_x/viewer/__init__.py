"""The trace viewer: a run folder as JSON answers, a server for this machine alone, a front end without a build step."""
