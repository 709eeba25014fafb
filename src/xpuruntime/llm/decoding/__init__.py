"""From logits to text: the words of a generation, processors of logits, beam search, stop strings and grammars."""
