"""Text: a small transformer with LoRA adapters by PEFT. Only the adapters travel.

python examples/text_lora.py     (pip install transformers peft; nothing is downloaded)
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import fedtaper as ft

WORDS, LENGTH = 50, 12


def adapted():
    """The base model is frozen; what trains are adapters of rank 4 and the last layer."""
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    base = BertForSequenceClassification(
        BertConfig(vocab_size=WORDS, intermediate_size=64, max_position_embeddings=LENGTH, **size)
    )
    return get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"]))


def reviews(seed, count=60):
    """A list of samples: words below 10 are kind, and a kind text is one with many of them."""
    draw = torch.Generator().manual_seed(seed)
    texts = torch.randint(0, WORDS, (count, LENGTH), generator=draw)
    kind = (texts < 10).sum(1) > 2
    return [{"input_ids": t, "labels": int(k)} for t, k in zip(texts, kind, strict=True)]


def loss(model, batch):
    found = model(**batch)
    return found.loss, (found.logits.argmax(1) == batch["labels"]).float().mean()


problem = ft.Custom(loss, adapted, [reviews(seed) for seed in range(3)])
whole = sum(p.numel() for p in problem.module().parameters())
print(f"{problem.dim:,} of {whole:,} parameters travel")
e = ft.Experiment(problem, ft.Power(2.0, 0.76), rounds=5, local_epochs=1, batch_size=10)
run = ft.run(e)
print("training loss:", run.metrics["train_loss"].round(3))
