"""Parts of locks that sessions and executors share: facts of this machine, and programs compared with their records."""
