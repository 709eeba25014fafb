"""Generation for many texts at once: continuous batching over a paged KV cache."""
