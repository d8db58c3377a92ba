"""The job of train.py with gradient accumulation written by hand: the yardstick for the rounding of a rescued run.

It replays what a rescued run recorded in events.jsonl: each step is cut into as many chunks as bsguard used for it in
the end. It runs with enough memory and without bsguard. Whatever distance it has to the run in one piece is the price
of summing in another order, which nobody can avoid.
"""

import json

import numpy as np
import paddle
from paddle import nn
from train import build, evaluate, load_data, make_parser, save_gradients


def chunks_per_step(events_path):
    """{step: number of chunks} from the step events of a run; steps count from 1."""
    with open(events_path, encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines]
    return {event["step"]: event["accumulation_steps"] for event in events if event["type"] == "step"}


def cut(size, chunks):
    """Bounds of `chunks` pieces of `size` samples whose lengths differ by one at most."""
    short, longer = divmod(size, chunks)
    start = 0
    for index in range(chunks):
        stop = start + short + (index < longer)
        yield start, stop
        start = stop


def main():
    parser = make_parser()
    parser.add_argument("--replay", metavar="EVENTS", required=True, help="events.jsonl of the run to replay")
    arguments = parser.parse_args()
    chunks = chunks_per_step(arguments.replay)
    paddle.set_device("gpu")
    train, test = load_data(arguments.batch_size)
    model, schedule, optimizer = build(arguments)
    criterion = nn.CrossEntropyLoss()

    losses = []
    for epoch in range(arguments.epochs):
        for images, labels in train:
            size = len(labels)
            total = 0.0
            for start, stop in cut(size, chunks.get(len(losses) + 1, 1)):
                share = (stop - start) / size
                loss = criterion(model(images[start:stop]), labels[start:stop]) * share
                loss.backward()
                total += float(loss)
            if arguments.save_gradients and not losses:
                save_gradients(model, arguments.save_gradients)
            optimizer.step()
            optimizer.clear_grad()
            losses.append(total)
        schedule.step()
        accuracy = evaluate(model, test)
        print(f"epoch {epoch + 1}: step {len(losses)}, loss {losses[-1]:.4f}, accuracy {accuracy:.2%}", flush=True)

    if arguments.save:
        np.savez(arguments.save, **{name: parameter.numpy() for name, parameter in model.named_parameters()})
    if arguments.log:
        np.savetxt(arguments.log, losses)


if __name__ == "__main__":
    main()
