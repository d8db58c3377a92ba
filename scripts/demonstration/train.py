"""Trains a small convolutional network on handwritten digits: an ordinary Paddle script that knows nothing of bsguard.

The data are the 1,797 digits of 8 x 8 pixels that ship inside scikit-learn. There is neither dropout nor batch
normalisation in the network, so a step that is run in chunks is the same step but for rounding.
"""

import argparse

import numpy as np
import paddle
from paddle import nn
from paddle.io import DataLoader, TensorDataset
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def block(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2D(channels_in, channels_out, 3, padding=1, bias_attr=False),
        nn.GroupNorm(8, channels_out),
        nn.GELU(),
    )


class DigitNet(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            block(1, width),
            block(width, width),
            block(width, width),
            nn.AvgPool2D(2),
            block(width, 2 * width),
            nn.AvgPool2D(2),
        )
        self.classifier = nn.Linear(2 * width * 2 * 2, 10)

    def forward(self, images):
        return self.classifier(self.features(images).flatten(1))


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--width", type=int, default=48, help="channels of the first layers")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--save", metavar="FILE", help="where to save the trained weights")
    parser.add_argument("--save-gradients", metavar="FILE", help="where to save the gradients of the first step")
    parser.add_argument("--log", metavar="FILE", help="where to write the loss of each step")
    return parser


def load_data(batch_size):
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 1, 8, 8)
    split = train_test_split(images, labels.astype("int64"), test_size=0.2, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = (paddle.to_tensor(part, place="cpu") for part in split)
    train = DataLoader(TensorDataset([train_images, train_labels]), batch_size=batch_size, shuffle=True)
    test = DataLoader(TensorDataset([test_images, test_labels]), batch_size=batch_size)
    return train, test


def evaluate(model, loader):
    model.eval()
    right = total = 0
    with paddle.no_grad():
        for images, labels in loader:
            predicted = model(images).argmax(axis=1)
            right += int((predicted == labels).sum())
            total += len(labels)
    model.train()
    return right / total


def build(arguments):
    paddle.seed(arguments.seed)
    np.random.seed(arguments.seed)
    model = DigitNet(arguments.width)
    schedule = paddle.optimizer.lr.StepDecay(arguments.lr, step_size=1, gamma=0.7)
    optimizer = paddle.optimizer.Adam(schedule, parameters=model.parameters())
    return model, schedule, optimizer


def save_gradients(model, path):
    np.savez(path, **{name: parameter.grad.numpy() for name, parameter in model.named_parameters()})


def main():
    arguments = make_parser().parse_args()
    paddle.set_device("gpu")
    train, test = load_data(arguments.batch_size)
    model, schedule, optimizer = build(arguments)
    criterion = nn.CrossEntropyLoss()

    losses = []
    for epoch in range(arguments.epochs):
        for images, labels in train:
            loss = criterion(model(images), labels)
            loss.backward()
            if arguments.save_gradients and not losses:
                save_gradients(model, arguments.save_gradients)
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
        schedule.step()
        accuracy = evaluate(model, test)
        print(f"epoch {epoch + 1}: step {len(losses)}, loss {losses[-1]:.4f}, accuracy {accuracy:.2%}", flush=True)

    if arguments.save:
        np.savez(arguments.save, **{name: parameter.numpy() for name, parameter in model.named_parameters()})
    if arguments.log:
        np.savetxt(arguments.log, losses)


if __name__ == "__main__":
    main()
