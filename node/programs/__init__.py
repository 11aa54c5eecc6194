"""Deputies and remotes as programs: started, shared, heard."""
