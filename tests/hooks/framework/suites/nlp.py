"""PaddleNLP's own Trainer on generated tokens: nlp.py OUT.npz [options]

Saves the loss of every update, the result of the evaluation and the final weights.
"""

import argparse
import sys

import numpy as np
import paddle
from paddlenlp.trainer import Trainer, TrainerCallback, TrainingArguments
from paddlenlp.transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPTConfig,
    GPTLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--model", default="bert", choices=["bert", "gpt", "llama"])
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--iterations", type=int, default=3)
parser.add_argument("--length", type=int, default=48)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--recompute", action="store_true")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--save", action="store_true")
options = parser.parse_args()

paddle.seed(5)
PADDING = 0 if options.model == "gpt" else -100  # of the labels: what the loss ignores
SIZES = {
    "vocab_size": 120,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}


class Tokens(paddle.io.Dataset):
    """Random tokens of varying length; the label says which half of the vocabulary is the more frequent."""

    def __init__(self, count):
        random = np.random.RandomState(count)
        self.samples = []
        for _ in range(count):
            length = random.randint(options.length // 2, options.length + 1)
            label = random.randint(0, 2)
            tokens = random.randint(4, 60, length) + 60 * (random.rand(length) < (0.7 if label else 0.3))
            self.samples.append((tokens.astype("int64"), int(label)))

    def __getitem__(self, index):
        tokens, label = self.samples[index]
        if options.model == "bert":
            return {"input_ids": tokens, "labels": label}
        return {"input_ids": tokens, "labels": np.append(tokens[1:], PADDING)}

    def __len__(self):
        return len(self.samples)


def collate(samples):
    """Padded to the longest of the batch."""
    longest = max(len(sample["input_ids"]) for sample in samples)

    def padded(name, value):
        rows = [np.pad(s[name], (0, longest - len(s[name])), constant_values=value) for s in samples]
        return paddle.to_tensor(np.stack(rows))

    batch = {"input_ids": padded("input_ids", 0)}
    if options.model == "bert":
        batch["labels"] = paddle.to_tensor([sample["labels"] for sample in samples])
    else:
        batch["labels"] = padded("labels", PADDING)
    return batch


class Record(TrainerCallback):
    """Losses and evaluations as the Trainer logs them."""

    def __init__(self):
        self.losses, self.evaluations = [], []

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))
        if "eval_loss" in logs:
            self.evaluations.append(float(logs["eval_loss"]))


arguments = TrainingArguments(
    output_dir="saved",
    device="gpu",
    seed=5,
    do_train=True,
    do_eval=True,
    per_device_train_batch_size=options.batch,
    per_device_eval_batch_size=options.batch,
    gradient_accumulation_steps=options.accumulate,
    max_steps=options.iterations,
    evaluation_strategy="steps",
    eval_steps=options.iterations,
    save_strategy="steps" if options.save else "no",
    save_steps=options.iterations,
    logging_steps=1,
    learning_rate=1e-3,
    warmup_steps=1,
    disable_tqdm=True,
    recompute=options.recompute,
)
drop = {"hidden_dropout_prob": options.dropout, "attention_probs_dropout_prob": options.dropout}
if options.model == "bert":
    network = BertForSequenceClassification(BertConfig(**SIZES, **drop, num_labels=2, max_position_embeddings=64))
elif options.model == "gpt":
    network = GPTLMHeadModel(GPTConfig(**SIZES, **drop, max_position_embeddings=64))
else:
    network = LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=64, use_flash_attention=False))
record = Record()
trainer = Trainer(
    model=network,
    criterion=paddle.nn.CrossEntropyLoss() if options.model == "bert" else None,
    args=arguments,
    data_collator=collate,
    train_dataset=Tokens(options.batch * options.accumulate * options.iterations),
    eval_dataset=Tokens(options.batch + 3),
    callbacks=[record],
)
trainer.train()
arrays = {"state_" + name: value.numpy() for name, value in network.state_dict().items()}
arrays["losses"] = np.asarray(record.losses)
arrays["evaluations"] = np.asarray(record.evaluations)
arrays["updates"] = np.asarray(trainer.state.global_step)
np.savez(options.out, **arrays)
print(trainer.state.global_step, "updates; losses", record.losses, file=sys.stderr)
