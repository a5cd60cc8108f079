"""Care of the process and the file system: imports, forks, interruptions, compile servers, files."""
