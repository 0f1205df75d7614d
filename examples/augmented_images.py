"""Images from a data set that augments them at random: fresh in every epoch, repeatable.

python examples/augmented_images.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedtaper as ft

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16).float().view(-1, 1, 8, 8)
labels = torch.tensor(labels)


class Shifted(torch.utils.data.Dataset):
    """The digits at some places, each moved by up to one pixel whenever it is read."""

    def __init__(self, places):
        self.places = places

    def __len__(self):
        return len(self.places)

    def __getitem__(self, i):
        shift = torch.randint(-1, 2, (2,)).tolist()
        return images[self.places[i]].roll(shift, (1, 2)), labels[self.places[i]]


def network():
    """BatchNorm, as people write it, turned into GroupNorm; dropout before the last layer."""
    return ft.groupnorm(
        nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 10),
        )
    )  # fmt: skip


def loss(model, x, y):
    answers = model(x)
    return nn.functional.cross_entropy(answers, y), (answers.argmax(1) == y).float().mean()


def evaluate(model):
    return {"test_accuracy": (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()}


clients = [Shifted(torch.arange(i, 1500, 5)) for i in range(5)]
problem = ft.Custom(loss, network, clients, evaluate)
e = ft.Experiment(problem, ft.Power(0.3, 0.76), rounds=6, local_epochs=1, batch_size=30)
run = ft.run(e)
print("test accuracy:", run.metrics["test_accuracy"].round(3))
