"""Files: policies as YAML and JSON documents."""
