"""What a test needs, shipped: seeded models, random graphs, the conformance kit."""
